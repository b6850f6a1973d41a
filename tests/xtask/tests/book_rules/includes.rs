//! What pages take from elsewhere: code, outputs, drawings.

use super::{CODE, FIGURE, OTHER, OUTPUT, PAGE, RECORDED, RECORDINGS, addition, fault};

#[test]
fn an_include_leads_to_a_file_and_an_anchor() {
    let unused = "lib.rs:1: no page includes anchor adding";
    fault(
        PAGE,
        "lib.rs:adding",
        "lib.rs:ading",
        &[unused, "one.md:7: 01-stage/src/lib.rs has no anchor ading"],
    );
    fault(
        PAGE,
        "lib.rs:adding",
        "bib.rs:adding",
        &[unused, "one.md:7: there is no file ../../01-stage/src/bib.rs"],
    );
    fault(PAGE, "lib.rs:adding", "lib.rs:1:3", &[unused, "lines move, so name an anchor"]);
    fault(PAGE, "#include ../../01", "#rustdoc_include ../../01", &["pages use #include alone"]);
    fault(
        PAGE,
        "../figures/drawing.svg",
        "../figures/draw.svg",
        &[
            "drawing.svg: no page includes this figure",
            "one.md:11: there is no file ../figures/draw.svg",
        ],
    );
    fault(
        PAGE,
        "../../01-stage",
        "../../../../01-stage",
        &[unused, "there is no file ../../../../01-stage"],
    );
}

#[test]
fn an_anchor_begins_once_ends_and_is_included() {
    let missing = "\"ANCHOR_END: adding\" is missing";
    fault(CODE, "// ANCHOR_END: adding\n", "", &[missing, missing]);
    fault(
        CODE,
        "fn add",
        "// ANCHOR: adding\nfn add",
        &["lib.rs:1: anchor adding is in this file twice", "lib.rs:2: "],
    );
    addition(
        "02-stage/src/a.rs",
        "// ANCHOR: b\n// ANCHOR_END: b\n",
        &["02-stage/src/a.rs:1: no page includes anchor b"],
    );
}

#[test]
fn code_is_included_or_says_that_it_is_a_sketch() {
    fault(OTHER, "text,sketch", "text", &["two.md:11: this code is not from the course's crates"]);
    fault(
        PAGE,
        "lib.rs:adding}}\n",
        "lib.rs:adding}}\nadd();\n",
        &["one.md:6: this code is not from"],
    );
    fault(OTHER, "```text,sketch\nx ← y\n```", "    x ← y", &["two.md:11: indented code"]);
    fault(OTHER, "x ← y\n", "", &[]);
    fault(OTHER, "text,sketch\nx ← y\n", "rust\n", &["an empty code block"]);
}

#[test]
fn a_console_block_is_an_output_or_commands() {
    let typed = "$ cargo course check ch01_adding\n";
    fault(OTHER, typed, &format!("{typed}ok\n"), &["two.md:7: \"ok\" is no command"]);
    fault(OTHER, typed, "", &["an empty console block"]);
    fault(OTHER, "console,fails", "console,fail", &["`fail` behind `console`"]);
    let whole = "run.txt}}";
    for parts in [
        "run.txt:1}}",
        "run.txt:1:2}}",
        "run.txt:1}}\n{{#include ../outputs/run.txt:2}}",
        "run.txt:1}}\n…\n{{#include ../outputs/run.txt:2}}",
    ] {
        fault(PAGE, whole, parts, &[]);
    }
    fault(PAGE, whole, "run.txt:2}}", &["one.md:15: the first line of an output is its command"]);
    fault(PAGE, whole, "run.txt:1:3}}", &["one.md:16: ../outputs/run.txt:1:3: the last line"]);
    let later = "\nThe run took 6.1 s.";
    let goes_on = format!("\n```console\n…\n{{{{#include ../outputs/run.txt:2}}}}\n```\n{later}");
    fault(PAGE, later, &goes_on, &[]);
    let before = "```console\n{{#include ../outputs/run.txt}}";
    let early = "one.md:15: nothing above shows the command of this output";
    fault(PAGE, before, &before.replace("{{", "…\n{{"), &[early]);
    let long = "loss 0.29  6.1 s\n".repeat(25);
    let explain = "one.md:15: 26 lines of output: explain after 25 at most";
    fault(OUTPUT, "loss 0.29  6.1 s\n", &long, &[explain]);
    fault(OUTPUT, "loss 0.29  6.1 s\n", &long[17..], &[]);
    let reversed = ["one.md:15: ", "one.md:16: ../outputs/run.txt:2:1: the last line"];
    fault(PAGE, whole, "run.txt:2:1}}", &reversed);
    fault(PAGE, whole, "run.txt:1:}}", &["one.md:16: ../outputs/run.txt:1:: the last line"]);
    fault(PAGE, whole, "run.txt:run}}", &["one.md:15: ", "one.md:16: "]);
    let typed = "one.md:15: \"ok\" is in no recorded output";
    fault(PAGE, whole, "run.txt:1}}\nok", &[typed, "one.md:16: the line behind"]);
    fault(PAGE, "```console", "```text", &["one.md:15: ../outputs/run.txt is an output"]);
    fault(
        PAGE,
        "../outputs/run.txt",
        "../../01-stage/src/lib.rs",
        &[
            "run.txt: no page shows this output",
            "one.md:15: ../../01-stage/src/lib.rs is not below book/outputs",
        ],
    );
}

#[test]
fn an_output_is_shown_begins_with_its_command_and_was_recorded() {
    fault(OUTPUT, "$ cargo", "cargo", &["run.txt: its first line is not the command"]);
    fault(
        OUTPUT,
        "loss 0.29  6.1 s\n",
        "",
        &["run.txt: not recorded yet: `cargo xtask outputs run`"],
    );
    fault(
        RECORDINGS,
        "\"run\"",
        "\"ran\"",
        &[
            "there is no output ran.txt",
            "recorded.html: does not go with",
            "run.txt: not recorded yet",
        ],
    );
    fault(RECORDINGS, "}}", "", &["machine.json: "]);
    addition(
        "book/outputs/more.txt",
        "$ ls\nx\n",
        &["more.txt: no page shows", "more.txt: not recorded"],
    );
}

#[test]
fn below_an_output_a_page_says_where_it_was_recorded() {
    let missing = "one.md:16: the line behind this output's code block says where it was recorded: \
                   {{#include ../outputs/recorded.html:run}}";
    let line = "```\n{{#include ../outputs/recorded.html:run}}\n";
    fault(PAGE, line, "```\n", &[missing]);
    fault(PAGE, line, &line.replace("```\n", "```\n\n"), &[missing]);
    fault(
        PAGE,
        "recorded.html:run",
        "recorded.html:walk",
        &[missing, "one.md:18: book/outputs/recorded.html has no anchor walk"],
    );
    // Two outputs may not share one line.
    let output = "```console\n{{#include ../outputs/run.txt}}\n```\n";
    fault(PAGE, output, &output.repeat(2), &[missing]);
    let unended = "one.md:19: a blank line is missing before this line";
    fault(PAGE, line, &format!("{line}## More\n"), &[unended]);
    let stale = "recorded.html: does not go with book/outputs/machine.json";
    fault(RECORDED, "2 cores", "3 cores", &[stale]);
    fault(RECORDINGS, "\"seconds\": 6", "\"seconds\": 7", &[stale]);
    fault(RECORDINGS, "\"P\"", "\"P & Q\"", &[stale]);
}

#[test]
fn a_figure_works_inside_a_page() {
    fault(FIGURE, "<line/>\n", "\n<line/>\n", &["drawing.svg: a blank line"]);
    fault(FIGURE, "<svg", "<?xml version=\"1.0\"?>\n<svg", &["<svg …> to </svg> and nothing else"]);
    fault(FIGURE, "role=\"img\" ", "", &["readers who cannot see it"]);
    fault(FIGURE, "<line/>", "<image href=\"https://example.com/x.png\"/>", &["fetches something"]);
    fault(FIGURE, "<line/>", "<script>1</script>", &["fetches something"]);
    addition(
        "book/figures/more.svg",
        "<svg role=\"img\" aria-label=\"\">\n</svg>\n",
        &["no page includes this figure"],
    );
}
