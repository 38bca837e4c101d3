use super::*;

static TOOL: LineTool = LineTool {
    names: &["tool run", "tool"],
    style: FlagStyle::Gnu,
    flags: &[
        value(
            &["c", "clients"],
            ValueForm::Number,
            FlagMeaning::OurFlag("--clients", ""),
        ),
        value(
            &["z", "time"],
            ValueForm::Seconds,
            FlagMeaning::OurFlag("--duration", "s"),
        ),
        switch(&["k"], FlagMeaning::OurFlag("--insecure", "")),
        switch(&["x"], FlagMeaning::Missing("nobody needs it")),
    ],
    reads_stdin: false,
    marker_flags: &[&["c", "z"]],
    finish: |line| line.set_target_from_word("http"),
};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn clustered_and_attached_flags_are_read() {
    for line in [
        "-kc50 -z3 https://a:1",
        "-k -c=50 --time=3 https://a:1",
        "-c 50 -k -z 3s -- https://a:1",
    ] {
        let read = TOOL.translate("http", &words(line), None).expect(line);
        assert_eq!(read.reasons, Vec::<String>::new(), "{line}");
        let mut flags = read.words[2..].to_vec();
        flags.sort();
        let expected = ["--clients", "--duration", "--insecure", "3s", "50"];
        assert_eq!(
            (read.words[1].as_str(), flags),
            ("https://a:1", expected.map(String::from).to_vec())
        );
    }
}

#[test]
fn lines_with_foreign_flags_or_values_are_refused() {
    let read = |line: &str| TOOL.translate("http", &words(line), None).expect_err(line);
    assert_eq!(read("-c 5 -q a"), LineError::UnknownFlag("-q".to_owned()));
    assert_eq!(read("-c many a"), LineError::InvalidValue("-c".to_owned()));
    assert_eq!(
        read("--time 3x a"),
        LineError::InvalidValue("--time".to_owned())
    );
    assert_eq!(read("-c"), LineError::InvalidValue("-c".to_owned()));
}

#[test]
fn nameless_line_needs_marker_flags() {
    assert!(TOOL.recognises_line(&words("-c 5 -z 3 a")));
    assert!(!TOOL.recognises_line(&words("-c 5 a")));
    assert!(!TOOL.recognises_line(&words("-c 5 -z 3 --rate 5 a")));
    let named = words("/usr/bin/tool run -c 5");
    assert_eq!(TOOL.strip_name(&named), Some(&named[2..]));
    assert_eq!(TOOL.strip_name(&words("-c tool")), None);
}

#[test]
fn variables_of_foreign_lines_stay_text() {
    let mut ours = [
        "-H",
        "a: $B",
        "-H",
        "c: d$E",
        "--metadata",
        "f:$G",
        "-u",
        "h:$I",
    ]
    .map(str::to_owned);
    escape_variables(&mut ours);
    let escaped = [
        "-H",
        "a: $$B",
        "-H",
        "c: d$E",
        "--metadata",
        "f:$$G",
        "-u",
        "h:$$I",
    ];
    assert_eq!(ours, escaped.map(str::to_owned));
    assert_eq!(
        escape_url_variables("http://$A@b/$c?key=$D&e=f$g"),
        "http://%24A@b/$c?key=%24D&e=f$g"
    );
}

#[test]
fn metric_suffixes_are_read() {
    let read = ["1", "1k", "2K", "3M", "1G", "k", "1x", ""].map(parse_suffixed_number);
    let (thousand, million) = (1_000, 1_000_000);
    let expected = [1, thousand, 2 * thousand, 3 * million, 1_000 * million];
    assert_eq!(read[..5], expected.map(Some));
    assert_eq!(read[5..], [None; 3]);
}

#[test]
fn missing_counterparts_and_targets_are_reasons() {
    let read = TOOL.translate("http", &words("-x"), None).expect("read");
    assert_eq!(read.words, words("http URL"));
    assert_eq!(
        read.reasons,
        [
            "the URL is missing",
            "`-x` has no counterpart: nobody needs it"
        ]
    );
}
