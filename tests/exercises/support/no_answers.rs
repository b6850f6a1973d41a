fn main() -> std::process::ExitCode {
    eprintln!("this program has no answers: cargo course run mine");
    std::process::ExitCode::from(2)
}
