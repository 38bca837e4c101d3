//! Folds the stacks that `perf script` prints, with limited memory.

use std::io::{self, BufRead};

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};
use plimsoll_model::formats::input::{self, LineEnd};
use plimsoll_model::runs::profile::FoldedStacks;

/// Number of samples to fold at once. The library (`inferno`) keeps all distinct stacks of its input in memory; the
/// profile keeps only the most frequent ones.
const SAMPLES_PER_CHUNK: usize = 5_000;

/// Maximum input to fold at once, bytes.
const MAX_CHUNK_BYTES: usize = 16 << 20;

/// Maximum length of a line, bytes. Symbols of C++ and Rust may have thousands.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Reads samples, which are separated by blank lines, and returns their folded stacks.
///
/// # Errors
/// When reading fails, or a line is too long.
pub(super) fn fold_stacks(mut from: impl BufRead) -> io::Result<FoldedStacks> {
    let mut stacks = FoldedStacks::default();
    let (mut chunk, mut samples, mut line) = (Vec::new(), 0, Vec::new());
    loop {
        let end = input::read_line(&mut from, &mut line, MAX_LINE_BYTES)?;
        chunk.extend_from_slice(&line);
        chunk.push(b'\n');
        samples += usize::from(line.is_empty());
        let is_full = samples >= SAMPLES_PER_CHUNK || chunk.len() >= MAX_CHUNK_BYTES;
        if end == LineEnd::EndOfInput || line.is_empty() && is_full {
            fold_chunk(&chunk, &mut stacks)?;
            chunk.clear();
            samples = 0;
        }
        if end == LineEnd::EndOfInput {
            return Ok(stacks);
        }
    }
}

fn fold_chunk(chunk: &[u8], stacks: &mut FoldedStacks) -> io::Result<()> {
    let mut folder = Folder::from(Options::default());
    let text = String::from_utf8_lossy(chunk);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    // Replace parentheses and `->` in symbols, which the library would misinterpret as a process name and as inlining.
    let text = text.replace("(anonymous namespace)", "{anonymous}");
    let text = text.replace("operator->", "operator→");
    let text = text.trim_start_matches('\n');
    // Check the first line, because the library panics if it is not the header of an event.
    if text.is_empty() || folder.is_applicable(text) == Some(false) {
        return Ok(());
    }
    let mut folded = Vec::new();
    folder.collapse(text.as_bytes(), &mut folded)?;
    for line in String::from_utf8_lossy(&folded).lines() {
        if let Some((stack, samples)) = line.rsplit_once(' ')
            && let Ok(samples) = samples.parse()
        {
            stacks.add(stack, samples);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of `perf script` about a thread, with a kernel's function, a mapped symbol of a JIT and a frame without a
    /// name.
    const SCRIPT: &str = "\
burner  17/18 14239.985718: cpu-clock:
\tffffffff816dfdb6 do_syscall_64 ([kernel.kallsyms])
\t          1aa340 hot_function (/opt/burner)
\t    7f0b54279c40 main (/opt/burner)

burner  17/18 14239.995718: cpu-clock:
\t    7f0b54279c40 py::spin:/srv/app.py (/tmp/perf-17.map)
\t    7f0b54a56240 [unknown] (/usr/lib/libpython3.so)

";

    #[test]
    fn samples_fold_to_outermost_first() {
        let stacks = fold_stacks(SCRIPT.as_bytes()).unwrap();
        let all: Vec<(&str, u64)> = stacks.iter().collect();
        assert_eq!(
            all,
            [
                ("burner;[libpython3.so];py::spin:/srv/app.py", 1),
                ("burner;main;hot_function;do_syscall_64", 1)
            ]
        );
    }

    #[test]
    fn names_of_cpp_keep_their_samples() {
        let script = "svc 17/18 1.5: cpu-clock:\n\t 1aa340 (anonymous namespace)::hash(int) (/opt/svc)\n\
                      \t 1aa350 ptr::operator->() (/opt/svc)\n\t 1aa360 main (/opt/svc)\n\n";
        let stacks = fold_stacks(script.as_bytes()).unwrap();
        let all: Vec<(&str, u64)> = stacks.iter().collect();
        let [(stack, 1)] = all[..] else {
            panic!("{all:?}");
        };
        let frames: Vec<&str> = stack.split(';').collect();
        assert_eq!(frames.len(), 4, "{stack}");
        assert!(frames[3].starts_with("{anonymous}::hash"), "{stack}");
    }

    #[test]
    fn many_chunks_fold_like_one() {
        let repeats = SAMPLES_PER_CHUNK + 10;
        let stacks = fold_stacks(SCRIPT.repeat(repeats).as_bytes()).unwrap();
        assert_eq!(stacks.sample_count(), 2 * repeats as u64);
        assert_eq!(stacks.iter().count(), 2);
        for empty in ["", "\n\n", "# a comment\n", "\t 12 f (x)\n\n", "error\n\n"] {
            assert_eq!(fold_stacks(empty.as_bytes()).unwrap().sample_count(), 0);
        }
        assert!(fold_stacks("x".repeat(MAX_LINE_BYTES + 1).as_bytes()).is_err());
    }
}
