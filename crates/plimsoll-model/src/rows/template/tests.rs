use super::*;

fn rows() -> Rows {
    Rows::parse(
        "users.csv",
        "name,age\nann,31\n\"o'hara, \"\"b\"\"\",7\ncy,\n",
    )
    .unwrap()
}

fn parse(text: &str) -> Result<Template, String> {
    Template::parse(text, &mut 0, Some(&rows()))
}

fn error_of(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

fn text(template: &Template, moment: &RenderContext<'_>) -> String {
    let mut out = Vec::new();
    template.write(moment, &mut out);
    let (least, most) = template.length_bounds();
    assert!(
        (least..=most).contains(&out.len()),
        "{out:?} {least} {most}"
    );
    String::from_utf8(out).unwrap()
}

fn at(text_: &str, number: u64) -> String {
    let variation = VariationSettings::new(1, 3, 3, RowOrder::RoundRobin);
    // 2026-11-21T09:30:00.25Z
    let moment = variation.render_context(number, 5, 1_795_253_400_250_000_000);
    text(&parse(text_).unwrap(), &moment)
}

#[test]
fn words_are_drawn_for_each_call() {
    let counts = |text: &str| -> Vec<usize> {
        let of = |number| at(text, number).split_whitespace().count();
        (0..200).map(of).collect()
    };
    let drawn = counts("{{words 3 6}}");
    assert_eq!(drawn, counts("{{words 3 6}}"), "the seed decides");
    for n in 3..=6 {
        assert!(drawn.contains(&n), "{n} of {drawn:?}");
    }
    assert!(drawn.iter().all(|n| (3..=6).contains(n)), "{drawn:?}");
    assert_eq!(at("<{{words 0 0}}>", 7), "<>");
    let (long, short) = (at("{{words 9 9}}", 1), at("{{words 4 4}}", 2));
    assert!(long.starts_with(&short), "{long}");
    for (field, why) in [
        ("{{words}}", "takes two numbers"),
        ("{{words 5}}", "takes two numbers"),
        ("{{words 6 5}}", "above the second"),
        ("{{words a 5}}", "whole numbers"),
        ("{{words -1 5}}", "whole numbers"),
        ("{{words 1 2000000}}", "at most 1000000"),
    ] {
        let error = error_of(field);
        assert!(error.contains(why), "{field}: {error}");
    }
}

#[test]
fn every_template_field_formats_its_value() {
    assert_eq!(at("a {{seq}} b", 7), "a 7 b");
    assert_eq!(at("{{ client }}/{{message}}", 7), "1/5");
    assert_eq!(at("{{now}} {{now s}}", 0), "1795253400250 1795253400");
    assert_eq!(at("{{now us}}", 0), "1795253400250000");
    assert_eq!(at("{{now ns}}", 0), "1795253400250000000");
    assert_eq!(at("{{now rfc3339}}", 0), "2026-11-21T09:30:00.25Z");
    assert_eq!(at("{{row.name}} is {{row.age}}", 4), "o'hara, \"b\" is 7");
    assert_eq!(at("{{row.age}}", 2), "");
    assert_eq!(at("{{random 4 4}}", 0), "4");
    assert_eq!(at("{{random -0.50 -0.5}}", 0), "-0.50");
    assert_eq!(at("{{{{seq}} is {{{{", 0), "{{seq}} is {{");
    assert_eq!(at("", 0), "");
}

#[test]
fn malformed_templates_are_reported() {
    for (text, problem) in [
        ("{{sec}}", "`{{sec}}` is unknown: did you mean seq?"),
        ("{{}}", "two plain braces are written {{{{"),
        ("a {{seq", "`{{seq` is not closed"),
        ("{{seq 1}}", "`{{seq 1}}`: takes no arguments"),
        ("{{random 5}}", "takes two numbers"),
        ("{{random 5 1}}", "above the second"),
        ("{{random 1 x}}", "`x` is not a number"),
        ("{{random 1 2.}}", "`2.` is not a number"),
        ("{{random - 2}}", "`-` is not a number"),
        ("{{random 0 99999999999999999999}}", "is too large"),
        ("{{random 0 0.1234567890}}", "at most 9 digits"),
        ("{{now h}}", "s, ms, us, ns or rfc3339"),
        (
            "{{row.nam}}",
            "users.csv has no such column: did you mean row.name?",
        ),
        ("{{row.zzzzzzz}}", "it has name, age"),
    ] {
        assert!(
            error_of(text).contains(problem),
            "{text}: {}",
            error_of(text)
        );
    }
    let without = Template::parse("{{row.a}}", &mut 0, None).unwrap_err();
    assert!(without.to_string().contains("needs rows"), "{without}");
}

#[test]
fn values_depend_on_seed_and_number() {
    let template = parse("{{uuid}} {{uuid}} {{random 1 1000000}}").unwrap();
    let one = |seed, number, message| {
        let variation = VariationSettings::new(seed, 1, 1, RowOrder::RoundRobin);
        text(&template, &variation.render_context(number, message, 0))
    };
    let first = one(1, 0, 0);
    assert_eq!(first, one(1, 0, 0));
    let (a, rest) = first.split_once(' ').unwrap();
    assert_ne!(a, rest.split_once(' ').unwrap().0, "two slots differ");
    assert_eq!((&a[14..15], a.len()), ("4", 36));
    assert!(["8", "9", "a", "b"].contains(&&a[19..20]), "{a}");
    for other in [one(2, 0, 0), one(1, 1, 0), one(1, 0, 1)] {
        assert_ne!(first, other);
    }
}

#[test]
fn random_numbers_cover_range_uniformly() {
    let field = parse("{{random -2 2}}").unwrap();
    let field = field.sole_field().unwrap().clone();
    let variation = VariationSettings::new(9, 1, 1, RowOrder::RoundRobin);
    let mut counts = [0u32; 5];
    for number in 0..50_000 {
        counts[(field.scaled_integer(&variation.render_context(number, 0, 0)) + 2) as usize] += 1;
    }
    // 10,000 each; the standard deviation is 89.
    assert!(
        counts.iter().all(|n| (9_500..10_500).contains(n)),
        "{counts:?}"
    );
    let all = parse("{{random -9223372036854775808 9223372036854775807}}").unwrap();
    let moment = variation.render_context(1, 0, 0);
    assert_ne!(
        text(&all, &moment),
        text(&all, &variation.render_context(2, 0, 0))
    );
}

#[test]
fn rows_are_chosen_by_number() {
    let row = |order, number| {
        let variation = VariationSettings::new(1, 1, 10, order);
        variation.render_context(number, 0, 0).row_index()
    };
    assert_eq!(row(RowOrder::RoundRobin, 23), 3);
    assert_eq!(row(RowOrder::Unique, 7), 7);
    let mut counts = [0u32; 10];
    for number in 0..50_000 {
        counts[row(RowOrder::Random, number)] += 1;
    }
    assert!(
        counts.iter().all(|n| (4_600..5_400).contains(n)),
        "{counts:?}"
    );
    // All messages of a call use the same row.
    let variation = VariationSettings::new(1, 1, 1_000, RowOrder::Random);
    assert_eq!(
        variation.render_context(5, 0, 0).row_index(),
        variation.render_context(5, 9, 1).row_index()
    );
}

#[test]
fn row_files_parse_as_csv_and_json() {
    let json = Rows::parse(
        "a",
        "{\"n\": 5, \"s\": \"x\"}\n\n{\"s\": \"y\", \"n\": [1, 2]}\n",
    )
    .unwrap();
    let column = |name| json.column(name).unwrap().values().collect::<Vec<_>>();
    assert_eq!(column("n"), ["5", "[1, 2]"]);
    assert_eq!(column("s"), ["x", "y"]);
    for (text, problem) in [
        ("", "a: no rows"),
        ("a,b\n", "a: no rows"),
        ("a,b\n1,2\n3\n", "line"),
        ("a,a\n1,2\n", "two columns are named `a`"),
        ("a,\n1,2\n", "column 2 has no name"),
        ("{\"a\": 1}\nx", "a, line 2: not a JSON object"),
        ("{}", "without a key"),
        ("[{\"a\": 1}]", "one object per line"),
        ("{\"a\": 1} x", "a, line 1: not a JSON object"),
        ("{\"a\": 01}", "a, line 1: not a JSON object"),
        ("{\"a\": \"\\ud800\"}", "a, line 1: not a JSON object"),
        (
            "a,b\nx,y\nz,\"w\nv,u\n",
            "a, line 3: a quote that is never closed",
        ),
        (
            "a,b\nx,\"y\nz,\"w\"\n",
            "a, line 2: a quoted value continues",
        ),
        ("a\n\"x\"y\n", "a, line 2: a quoted value continues"),
    ] {
        let error = Rows::parse("a", text).unwrap_err().to_string();
        assert!(error.contains(problem), "{text:?}: {error}");
    }
}

#[test]
fn json_rows_preserve_value_bytes() {
    let numbers = [
        "12345678901234567890123",
        "1.10",
        "1e3",
        "1E+03",
        "-0",
        "-0.0",
        "1e999",
        "0.1000000000000000055511151231257827",
    ];
    let others = ["true", "null", "[1, 2]", r#"{"b": 1.0,  "a": 2}"#];
    for typed in numbers.into_iter().chain(others) {
        let line = format!(r#"{{"z": {typed} , "a":"x,}}\""}}"#);
        let rows = Rows::parse("rows", &line).unwrap();
        assert_eq!(rows.column("z").unwrap().value(0), typed, "{line}");
        assert_eq!(rows.column("a").unwrap().value(0), "x,}\"", "{line}");
        assert_eq!(rows.whole_rows().value(0), line);
    }
    for (typed, text) in [
        (r#""\u0041\u00e9é""#, "Aéé"),
        (r#""\/\"\\\n""#, "/\"\\\n"),
        (r#""\ud83d\ude00""#, "😀"),
        (r#""""#, ""),
    ] {
        let rows = Rows::parse("rows", &format!("{{\"s\":{typed}}}")).unwrap();
        assert_eq!(rows.column("s").unwrap().value(0), text, "{typed}");
    }
}

#[test]
fn reference_to_duplicate_key_is_rejected() {
    let rows = Rows::parse("rows", "{\"a\": 1}\n{\"a\": 1, \"b\": 2, \"a\": 3}\n").unwrap();
    assert_eq!(rows.whole_rows().value(1), r#"{"a": 1, "b": 2, "a": 3}"#);
    let error = Template::parse("{{row.a}}", &mut 0, Some(&rows)).unwrap_err();
    assert!(error.contains("rows, line 2: `a` occurs twice"), "{error}");
}

#[test]
fn csv_rows_keep_column_order() {
    let rows = Rows::parse("rows", "z,a\n\"say \"\"x\"\", y\",\"two\nlines\"\n").unwrap();
    let expected = r#"{"z":"say \"x\", y","a":"two\nlines"}"#;
    assert_eq!(rows.whole_rows().value(0), expected);
}

#[test]
fn rows_need_only_referenced_columns() {
    let text = "{\"a\": 1}\n\n{\"b\": {\"c\": []}, \"d\": \"x\"}\n{\"a\": 3, \"d\": 2}";
    let rows = Rows::parse("a", text).unwrap();
    let parse = |text: &str| Template::parse(text, &mut 0, Some(&rows));
    for (text, line) in [("{{row.a}}", 3), ("{{row.b}}", 1), ("{{row.d}}", 1)] {
        let error = parse(text).unwrap_err().to_string();
        assert!(
            error.contains(&format!("a, line {line}: ")),
            "{text}: {error}"
        );
    }
    let whole: Vec<_> = rows.whole_rows().values().collect();
    let expected = [
        r#"{"a": 1}"#,
        r#"{"b": {"c": []}, "d": "x"}"#,
        r#"{"a": 3, "d": 2}"#,
    ];
    assert_eq!(whole, expected);
    let template = parse("{{ row }}").unwrap();
    assert!(
        matches!(&template.sole_field().unwrap().source, FieldSource::Row(c) if c.value(0) == whole[0])
    );

    let csv = Rows::parse("a", "n,s\n5,x\n").unwrap();
    assert_eq!(csv.whole_rows().value(0), r#"{"n":"5","s":"x"}"#);
    let error = Template::parse("{{row}}", &mut 0, None).unwrap_err();
    assert!(
        error.to_string().contains("`{{row}}` needs rows"),
        "{error}"
    );
    assert!(uses_rows("{\"a\": {{ row }}}") && !uses_rows("{{rows}}"));
}

#[test]
fn bare_fields_become_strings() {
    for (json, quoted) in [
        (
            r#"{"a": {{seq}}, "b": [{{ uuid }}]}"#,
            r#"{"a": "{{seq}}", "b": ["{{ uuid }}"]}"#,
        ),
        (r#"{"a":{{seq}}}"#, r#"{"a":"{{seq}}"}"#),
        (r#"{"a": "\"{{seq}}\\"}"#, r#"{"a": "\"{{seq}}\\"}"#),
        (r#"{"é": {{row.a"b}}}"#, r#"{"é": "{{row.a\"b}}"}"#),
        (r#"{"a": {{"#, r#"{"a": {{"#),
        (r#"{"a": {"b": {}}}"#, r#"{"a": {"b": {}}}"#),
    ] {
        assert_eq!(quote_unquoted_fields(json), quoted);
    }
}

#[test]
fn first_template_field_is_found() {
    assert_eq!(first_field("[\"{{ seq }}\"]"), Some("{{ seq }}"));
    assert_eq!(first_field("[\"{{row.a}}\"]"), Some("{{row.a}}"));
    assert_eq!(first_field("a {{mustache}} {\"a\":{\"b\":{}}}"), None);
    let captured = ["token".to_owned()];
    let among = |text| first_field_among(text, &captured);
    assert_eq!(
        (among("{{tokens}} {{token}}"), among("{{seq}}")),
        (Some("{{token}}"), Some("{{seq}}"))
    );
}
