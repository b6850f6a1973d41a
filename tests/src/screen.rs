//! Programs as a person at a terminal sees them: help that fits on a screen, and lines that fit into its width.

use std::process::Command;

/// The fewest and the most lines of `-h`.
const SCREEN: std::ops::RangeInclusive<usize> = 20..=40;

/// Checks the help of a program. `-h` fits on a screen of 80 columns, and has the usage, two examples and headings.
/// `--help` has every flag of `-h`. Examples use flags that exist.
pub fn check_help(program: &str) {
    let print = |flag| {
        let output =
            Command::new(program).arg(flag).env("COLUMNS", "80").output().expect("a program");
        assert!(output.status.success() && output.stderr.is_empty(), "{flag}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let (short, long) = (print("-h"), print("--help"));
    let lines = short.lines().count();
    assert!(SCREEN.contains(&lines), "-h has {lines} lines:\n{short}");
    for text in [&short, &long] {
        assert_fits(text, 80);
        assert!(text.contains("\nUsage: ") && text.contains("\nExamples:\n  "), "{text}");
    }
    let flags = |text: &str| -> Vec<String> {
        let words = text.lines().filter(|line| line.starts_with("      --"));
        words.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    };
    let (short_flags, long_flags) = (flags(&short), flags(&long));
    assert!(
        short_flags.len() > 3 && short_flags.iter().all(|flag| long_flags.contains(flag)),
        "{long}"
    );
    let headings = short.lines().filter(|line| line.ends_with(':') && !line.starts_with(' '));
    assert!(headings.count() >= 3, "examples, and at least two headings of flags:\n{short}");
    // The examples are commands that the program accepts, up to a file that it would write.
    let examples = short.lines().skip_while(|line| *line != "Examples:").skip(1);
    let examples: Vec<&str> = examples.take_while(|line| line.starts_with("  ")).collect();
    assert!(examples.len() >= 2, "{short}");
    let name = short.lines().find_map(|line| line.strip_prefix("Usage: ")?.split(' ').next());
    let command = format!("cargo run --release -p {} -- FLAGS\n", name.expect("a usage"));
    assert!(short.contains(&command), "{short}");
    for word in examples.iter().flat_map(|line| line.split_whitespace()) {
        let known = !word.starts_with("--") || long_flags.iter().any(|flag| flag == word);
        assert!(known, "{word} of an example is not a flag:\n{long}");
    }
}

/// Panics if a line of a text is wider than so many columns.
pub fn assert_fits(text: &str, columns: usize) {
    let wide = text.lines().find(|line| line.chars().count() > columns);
    assert_eq!(wide, None, "{columns} columns:\n{text}");
}

/// Runs a program in a terminal of 80 and of 60 columns, and checks that every line fits, the progress bar included.
/// Returns what the two terminals show.
pub fn check_width(program: &str, arguments: &[&str]) -> [String; 2] {
    [80, 60].map(|columns| {
        let shown = in_terminal(program, arguments, columns);
        assert_fits(&shown, columns);
        shown
    })
}

/// Returns the lines that a program prints in a terminal, without the codes that move the cursor. Only Linux has the `script`
/// that makes a terminal; elsewhere, a variable of the environment has the number of columns.
fn in_terminal(program: &str, arguments: &[&str], columns: usize) -> String {
    let mut command = Command::new(program);
    command.args(arguments).env("COLUMNS", columns.to_string());
    if cfg!(target_os = "linux") {
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let line = format!("stty cols {columns} rows 24; exec '{program}' {}", words.join(" "));
        command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        command.env_remove("COLUMNS").env("TERM", "xterm");
    }
    command
        .env("COURSE_MIRRORS", "http://127.0.0.1:9")
        .env("COURSE_DATA_DIR", "/no-data-of-the-course");
    let output = command.stdin(std::process::Stdio::null()).output().expect("a program");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{arguments:?}: {text}");
    let mut shown = String::new();
    let text = text.replace("\r\n", "\n");
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            // A code ends with its first letter.
            '\u{1b}' => drop(letters.find(|letter| letter.is_ascii_alphabetic())),
            // A bar is drawn again and again in one line.
            '\r' => shown.push('\n'),
            letter => shown.push(letter),
        }
    }
    shown
}
