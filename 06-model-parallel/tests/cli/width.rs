//! Every line fits into the terminal.

use super::{SMALL, program, screen};

/// Everything that a run prints, for a terminal of so many columns. Fails when a line is wider.
fn within(columns: usize, arguments: &[&str]) -> String {
    let mut command = program(arguments);
    command.env("COLUMNS", columns.to_string());
    let output = command.assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).expect("text");
    screen::assert_fits(&text, columns);
    text
}

#[test]
fn a_run_fits_into_80_and_into_60_columns() {
    let splits: [&[&str]; 4] = [
        &["--widths=20,18,16"],
        &["--widths=20,18,16", "--mesh=2x2x2", "--dtype=f64"],
        &["--mesh=2x1x2", "--widths=20,18"],
        &["--devices=6", "--widths=20,20,20,20,20", "--schedule=naive,1f1b"],
    ];
    for split in splits {
        for columns in [80, 60] {
            let text = within(columns, &[&SMALL[..], split].concat());
            for block in ["\nWeights: ", "\nTime of a step", "\nMemory of each device"] {
                assert_eq!(text.matches(block).count(), 1, "{block:?} in:\n{text}");
            }
            // At 80 columns no table leaves anything out.
            assert!(columns < 80 || !text.contains("too narrow"), "{text}");
        }
    }
}

#[test]
fn devices_of_a_mesh_with_the_same_memory_share_a_row() {
    let mesh = ["--mesh=2x2x2", "--widths=20,18,16", "--schedule=gpipe", "--micro-batches=4"];
    let text = within(80, &[&SMALL[..], &mesh].concat());
    let table = text.split("Memory of each device").nth(1).expect("a table");
    let rows = table.lines().skip_while(|line| !line.starts_with("GPipe"));
    let rows: Vec<&str> = rows.map(str::trim).collect();
    assert!(rows[0].contains(" 0–1, 4–5 ") && rows[1].starts_with("2–3, 6–7 "), "{table}");
    assert!(rows[2].starts_with("Least memory"), "{table}");
}

#[test]
fn a_drawing_is_cut_into_parts() {
    let three = ["--draw", "--devices=3", "--micro-batches=4", "--schedule=gpipe,zb-h1"];
    // 18 units of time of four columns, behind ten columns of names.
    assert!(!within(80, &three).contains("from time"));
    let text = within(60, &three);
    assert!(text.contains("from time 0:\nstage 0   F0  F1"), "{text}");
    assert!(text.contains("from time 13:\nstage 0   B1  B2  B2  B3  B3\n"), "{text}");
    for columns in [60, 80] {
        within(columns, &["--draw", "--devices=12", "--micro-batches=24"]);
        within(columns, &["--draw", "--devices=4", "--schedule=interleaved:3"]);
    }
}
