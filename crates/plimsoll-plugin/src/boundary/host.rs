//! The host's side: loading a shared object, and calling what it gave.
//!
//! A library is never unloaded: its functions are called from other threads, and its
//! messages may still be on their way.

use std::ffi::{CStr, c_char};
use std::mem;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::slice;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::abi::{self, Buffer, EntryFn, Host, Table};

/// Bytes of a name.
const LONGEST_NAME: usize = 63;

/// Bytes of a message that are reported.
const LONGEST_MESSAGE: u64 = 1024;

/// Why a plugin can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("plugin {}: can't be read: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("plugin {}: can't be loaded: {problem}", path.display())]
    Load { path: PathBuf, problem: String },
    #[error(
        "plugin {}: exports no function `plimsoll_codec`: it is not a codec plugin (see plimsoll_codec.h)",
        path.display()
    )]
    Symbol { path: PathBuf },
    #[error(
        "plugin {}: gave no table of functions: it can't work with version {ours} of the interface",
        path.display()
    )]
    Refused { path: PathBuf, ours: u32 },
    #[error(
        "plugin {}: speaks version {theirs} of the interface, and this program version {ours}: build it with the plimsoll_codec.h of this program",
        path.display()
    )]
    Version {
        path: PathBuf,
        theirs: u32,
        ours: u32,
    },
    #[error(
        "plugin {}: its table has {theirs} bytes, expected {ours}: set size to sizeof(struct plimsoll_codec)",
        path.display()
    )]
    Size {
        path: PathBuf,
        theirs: u32,
        ours: u32,
    },
    #[error("plugin {}: its table lacks `{function}`: set all four functions", path.display())]
    Function {
        path: PathBuf,
        function: &'static str,
    },
    #[error("plugin {}: its name {problem}: expected 1 to 63 bytes of UTF-8", path.display())]
    Name {
        path: PathBuf,
        problem: &'static str,
    },
}

/// A plugin's functions, and its name.
#[derive(Clone, Debug)]
pub(crate) struct Functions {
    pub(crate) name: String,
    matches: abi::MatchFn,
    decode: abi::DecodeFn,
    encode: abi::EncodeFn,
    make: abi::MakeFn,
}

static HOST: Host = Host {
    abi: abi::VERSION,
    size: size_of::<Host>() as u32,
    wants,
    log,
};

impl Functions {
    /// Loads a shared object for the rest of the process's life.
    pub(crate) fn load(path: &Path) -> Result<Functions, LoadError> {
        let name = || path.to_owned();
        // Apart from what the loader reports, and in plain words.
        let found = std::fs::metadata(path).map_err(|source| LoadError::Read {
            path: name(),
            source,
        })?;
        if !found.is_file() {
            return Err(LoadError::Load {
                path: name(),
                problem: "not a file: name the shared object (.so)".to_owned(),
            });
        }
        // A bare name would be looked for where the system keeps its libraries.
        let place = if path.is_absolute() {
            path.to_owned()
        } else {
            Path::new(".").join(path)
        };
        // SAFETY: runs the library's initialisers: whoever names a plugin trusts its code
        // with this process. All its symbols are resolved now, not at a call.
        let library =
            unsafe { Library::open(Some(&place), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
                LoadError::Load {
                    path: name(),
                    problem: reason(&e, &place),
                }
            })?;
        // SAFETY: the header declares the symbol with this type, and calls it the plugin's
        // promise.
        let entry = unsafe { library.get::<EntryFn>(abi::SYMBOL.as_bytes()) };
        let entry: Symbol<EntryFn> = entry.map_err(|_| LoadError::Symbol { path: name() })?;
        // SAFETY: the library is loaded, and `HOST` is static.
        let table = unsafe { entry(&raw const HOST) };
        mem::forget(library);
        // SAFETY: the plugin's promise: null, or a table that stays for the process's life.
        unsafe { Functions::read(table, path) }
    }

    /// Of a plugin that is part of this program.
    pub(crate) fn of(table: &'static Table) -> Result<Functions, LoadError> {
        // SAFETY: a reference is a table, and this one stays.
        unsafe { Functions::read(table, Path::new("(built in)")) }
    }

    /// # Safety
    /// `table` is null, or points to a table with the first two fields of every version
    /// and, where they say this version and size, with all fields of it.
    unsafe fn read(table: *const Table, path: &Path) -> Result<Functions, LoadError> {
        let path = || path.to_owned();
        if table.is_null() || !table.is_aligned() {
            return Err(LoadError::Refused {
                path: path(),
                ours: abi::VERSION,
            });
        }
        // SAFETY: not null, aligned, and these fields are there in every version.
        let (version, size) = unsafe { ((*table).abi, (*table).size) };
        if version != abi::VERSION {
            return Err(LoadError::Version {
                path: path(),
                theirs: version,
                ours: abi::VERSION,
            });
        }
        let ours = size_of::<Table>() as u32;
        if size != ours {
            return Err(LoadError::Size {
                path: path(),
                theirs: size,
                ours,
            });
        }
        // SAFETY: of this version and size, so every field is there; null functions are
        // `None`.
        let table = unsafe { &*table };
        let lacks = |function| LoadError::Function {
            path: path(),
            function,
        };
        let wrong = |problem| LoadError::Name {
            path: path(),
            problem,
        };
        if table.name.is_null() {
            return Err(wrong("is missing"));
        }
        // SAFETY: not null, and the plugin's promise: text with a zero byte at its end.
        let name = unsafe { CStr::from_ptr(table.name) };
        let name = name.to_str().map_err(|_| wrong("is not UTF-8"))?;
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(wrong("is empty or too long"));
        }
        Ok(Functions {
            name: name.to_owned(),
            matches: table.matches.ok_or_else(|| lacks("match"))?,
            decode: table.decode.ok_or_else(|| lacks("decode"))?,
            encode: table.encode.ok_or_else(|| lacks("encode"))?,
            make: table.make.ok_or_else(|| lacks("make"))?,
        })
    }

    #[inline]
    pub(crate) fn matches(&self, bytes: &[u8], sender: u32) -> i32 {
        // SAFETY: a function of a loaded table, called as the header has it: a pointer to
        // bytes that live through the call, with their length.
        unsafe { (self.matches)(bytes.as_ptr(), bytes.len() as u64, sender) }
    }

    #[inline]
    pub(crate) fn decode(&self, bytes: &[u8], sender: u32, frame: &mut abi::Frame) -> i32 {
        // SAFETY: as above; the frame is this call's own, and any bytes are valid in it.
        unsafe { (self.decode)(bytes.as_ptr(), bytes.len() as u64, sender, frame) }
    }

    /// The result, and the length that the plugin returned.
    #[inline]
    pub(crate) fn encode(&self, frame: &[u8], note: u64, id: u64, room: &mut [u8]) -> (i32, u64) {
        let mut out = buffer(room);
        // SAFETY: as above; the buffer is `room`, which nobody else has meanwhile.
        let result =
            unsafe { (self.encode)(frame.as_ptr(), frame.len() as u64, note, id, &raw mut out) };
        (result, out.length)
    }

    /// The result, and the length that the plugin returned.
    pub(crate) fn make(
        &self,
        what: u32,
        id: u64,
        note: u64,
        payload: &[u8],
        room: &mut [u8],
    ) -> (i32, u64) {
        let mut out = buffer(room);
        // SAFETY: as above; the buffer is `room`, which nobody else has meanwhile.
        let result = unsafe {
            (self.make)(
                what,
                id,
                note,
                payload.as_ptr(),
                payload.len() as u64,
                &raw mut out,
            )
        };
        (result, out.length)
    }
}

fn buffer(room: &mut [u8]) -> Buffer {
    Buffer {
        bytes: room.as_mut_ptr(),
        room: room.len() as u64,
        length: 0,
    }
}

/// What the loader reports, without the path, which is named already.
fn reason(error: &libloading::Error, place: &Path) -> String {
    let place = format!("{}: ", place.display());
    error.to_string().replacen(&place, "", 1)
}

extern "C" fn wants(level: u32) -> u32 {
    let is_wanted = catch_unwind(|| match level {
        abi::level::ERROR => tracing::enabled!(tracing::Level::ERROR),
        abi::level::WARN => tracing::enabled!(tracing::Level::WARN),
        abi::level::DEBUG => tracing::enabled!(tracing::Level::DEBUG),
        _ => false,
    });
    u32::from(is_wanted.unwrap_or(false))
}

/// # Safety
/// `text` points to `length` bytes, or is null.
unsafe extern "C" fn log(level: u32, text: *const c_char, length: u64) {
    if text.is_null() {
        return;
    }
    let length = length.min(LONGEST_MESSAGE) as usize;
    // SAFETY: not null, and the plugin's promise: so many bytes are there.
    let bytes = unsafe { slice::from_raw_parts(text.cast::<u8>(), length) };
    // A panic must not run into C.
    let _ = catch_unwind(|| {
        let text = String::from_utf8_lossy(bytes);
        match level {
            abi::level::ERROR => tracing::error!("{text}"),
            abi::level::WARN => tracing::warn!("{text}"),
            abi::level::DEBUG => tracing::debug!("{text}"),
            _ => {}
        }
    });
}
