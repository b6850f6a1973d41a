//! `cargo install-tools`, and the book's preprocessor `dedent`.
//!
//! Every build of the book runs this program, so it uses no other package of the course and is built in seconds.

mod dedent;
mod install;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match &words[..] {
        ["dedent"] => dedent::run(),
        // mdBook asks whether `dedent` supports a renderer. The exit code is the answer.
        ["dedent", "supports", _] => Ok(()),
        ["install", names @ ..] => match install::chosen(names) {
            Ok(tools) => install::run(&tools),
            Err(usage) => return end(2, &usage),
        },
        _ => return end(2, "`cargo install-tools` installs the programs that make the book"),
    };
    done.map_or_else(|failure| end(1, &failure), |()| ExitCode::SUCCESS)
}

fn end(code: u8, why: &str) -> ExitCode {
    eprintln!("error: {why}");
    code.into()
}
