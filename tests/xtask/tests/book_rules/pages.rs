//! Pages: how they hang together, and what they say.

use xtask::book::built;
use xtask::book::dedent::dedent;

use super::{PAGE, RECORDINGS, SUMMARY, fault, small_book, write};
use crate::*;

#[test]
fn the_summary_has_every_page_once_and_nothing_else() {
    fault(SUMMARY, "- [Two](two.md)\n", "", &["book/src/two.md: is not in SUMMARY.md"]);
    fault(
        SUMMARY,
        "two.md",
        "to.md",
        &["SUMMARY.md:4: there is no page \"to.md\"", "two.md: is not"],
    );
    fault(SUMMARY, "[Two]", "[One](one.md)\n- [Two]", &["SUMMARY.md:4: one.md is listed twice"]);
    fault(SUMMARY, "two.md", "", &["there is no page \"\"", "two.md: is not in"]);
}

#[test]
fn a_comment_stands_behind_what_it_is_about() {
    fault(
        PAGE,
        "\n[the web]",
        "\n<!-- source: a book --> [the web]",
        &["one.md:4: a comment begins this line"],
    );
    fault(PAGE, "\n[the web]", " <!-- source: a book -->\n[the web]", &[]);
}

#[test]
fn a_link_within_the_book_leads_to_a_page_and_a_heading() {
    fault(PAGE, "two.md#a-heading", "too.md", &["one.md:3: there is no too.md"]);
    fault(PAGE, "two.md#a-heading", "two.md#heading", &["book/src/two.md has no heading #heading"]);
    fault(PAGE, "two.md#a-heading", "../../README.md", &["is not in the book"]);
    fault(PAGE, "two.md#a-heading", "../../../../README.md", &["is not in the book"]);
    fault(PAGE, "[two](two.md#a-heading)", "[two][2]", &["[two][2] has no definition"]);
    fault(PAGE, "two.md#a-heading", "#one", &[]);
}

#[test]
fn a_number_that_names_a_field_is_that_of_the_data() {
    let field = |row: usize| format!("times.json/rows/{row}/median");
    for number in ["27.2", "2.6", "30"] {
        let what = format!("one.md:3: \"{number}\" is not 0.02708, as {} has it", field(0));
        fault(PAGE, "27.1", number, &[&what]);
    }
    fault(PAGE, "27.1 ms", "27 ms", &[]);
    fault(PAGE, "27.1 ms", "0.0271 s", &[]);
    fault(PAGE, "27.1", "", &["\"\" is not 0.02708"]);
    let gone = format!("there is no number {} in book/data", field(1));
    fault(PAGE, &field(0), &field(1), &[&gone]);
    fault(PAGE, "times.json", "time.json", &["there is no number time.json/rows/0/median"]);
    // A number without a field is plain text.
    fault(PAGE, "29 %", "31 %", &[]);
}

#[test]
fn the_commands_of_pages_are_known_with_their_marks() {
    let folder = small_book();
    let told: Vec<_> = commands::all(&Book::open(folder.path()).unwrap())
        .unwrap()
        .into_iter()
        .map(|command| (command.page, command.line, command.text, command.marks))
        .collect();
    let fails = vec!["fails".to_owned()];
    assert_eq!(
        told,
        [
            ("one.md".to_owned(), 15, "cargo run".to_owned(), vec![]),
            ("two.md".to_owned(), 7, "cargo course check ch01_adding".to_owned(), fails),
        ]
    );
    let recordings = fs::read_to_string(folder.path().join(RECORDINGS)).unwrap();
    write(folder.path(), RECORDINGS, &recordings.replace("\"seconds\": 6", "\"seconds\": 60"));
    let commands = commands::all(&Book::open(folder.path()).unwrap()).unwrap();
    assert_eq!(commands[0].marks, ["long"]);
    let fails = recordings.replace("\"seconds\": 6", "\"seconds\": 6, \"fails\": true");
    write(folder.path(), RECORDINGS, &fails);
    let commands = commands::all(&Book::open(folder.path()).unwrap()).unwrap();
    assert_eq!(commands[0].marks, ["fails"]);
    // In the order in which they are read, whatever the files are called.
    write(folder.path(), SUMMARY, "# Summary\n\n[Two](two.md)\n- [One](one.md)\n");
    let commands = commands::all(&Book::open(folder.path()).unwrap()).unwrap();
    assert_eq!((&*commands[0].page, &*commands[1].page), ("two.md", "one.md"));
}

#[test]
fn listings_lose_their_common_indentation() {
    let method = "```rust\n    fn one() {\n\n        2\n    }\n```\n";
    assert_eq!(dedent(method), "```rust\nfn one() {\n\n    2\n}\n```\n");
    // An output keeps its columns, and so does a listing that begins at the left edge.
    let others = "```console\n    a table\n```\n\n```rust\nfn one() {\n    2\n}\n```\n";
    assert_eq!(dedent(others), others);
    assert_eq!(dedent(&format!("{others}{method}")), format!("{others}{}", dedent(method)));
    assert_eq!(dedent("```rust\n\n```\n"), "```rust\n\n```\n");
}

#[test]
fn mdbook_gets_its_book_back_with_dedented_pages() {
    let page = |content: &str, sub_items: Value| json!({"Chapter": {"content": content, "sub_items": sub_items}});
    let book = |code: &str| {
        let inner = page(&format!("```rust\n{code}\n```"), json!([]));
        json!({"items": [page("# One", json!([inner])), "Separator"]})
    };
    let message = json!([{"root": "/"}, book("    two();")]).to_string();
    let answer = tool(&["dedent"]).write_stdin(message).assert().success();
    let answer: Value = serde_json::from_slice(&answer.get_output().stdout).unwrap();
    assert_eq!(answer, book("two();"));
    tool(&["dedent", "supports", "html"]).assert().success().stdout("");
    for (message, told) in [("", "a message of mdBook"), ("[{}, {}]", "has no page")] {
        tool(&["dedent"]).write_stdin(message).assert().failure().stderr(contains(told));
    }
}

#[test]
fn a_built_page_loads_nothing_from_another_host() {
    let told = |name: &str, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "html/page.html", "<p><a href=\"https://example.com\">there</a>");
        write(folder.path(), &format!("html/{name}"), text);
        let problems = built::check(&folder.path().join("html")).unwrap();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (name, text) in [
        ("a.html", "<link rel=\"stylesheet\"\n href=\"css/a.css\"><script src='a.js'></script>"),
        ("a.css", "@font-face { src: url(fonts/a.woff2) } /* https://example.com */"),
        (
            "a.js",
            "// https://example.com\nfetch('toc.html'); fetch_later('https://play.rust-lang.org/x')",
        ),
    ] {
        assert!(told(name, text).is_empty(), "{name}: {:?}", told(name, text));
    }
    for (name, text) in [
        ("a.html", "<link rel=\"stylesheet\"\n href=\"https://example.com/a.css\">"),
        ("a.html", "<img alt='' src=//example.com/a.png>"),
        ("a.html", "<div style=\"background: url('http://example.com/a.png')\">"),
        ("a.html", "<pre><pre class=\"playground\"><code>"),
        ("a.svg", "<svg><image href=\"https://example.com/a.png\"/></svg>"),
        ("a.css", "@import \"https://example.com/a.css\";"),
        ("a.css", "@font-face { src: url(https://example.com/a.woff2) }"),
        ("a.js", "fetch('https://example.com/a.json')"),
        ("a.js", "script.src = \"https://example.com/a.js\""),
    ] {
        assert_eq!(told(name, text).len(), 1, "{name}: {text}: {:?}", told(name, text));
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(built::check(empty.path()).is_err());
}
