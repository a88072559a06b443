//! `docs/commands.md` says what the table of commands says. `cargo xtask fix` runs this with `QUIPU_REWRITE_PAGES` set,
//! and then the page is written first.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::fs;
use std::path::Path;

use quipu_wire::commands::page;

#[test]
fn the_page_of_commands_is_that_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let page = page::render();
    if std::env::var_os("QUIPU_REWRITE_PAGES").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let stale = "docs/commands.md is not what the table says: run `cargo xtask fix`";
    for (line, (ours, theirs)) in page.lines().zip(written.lines()).enumerate() {
        assert_eq!(ours, theirs, "{stale} (line {})", line + 1);
    }
    assert_eq!(page, written, "{stale}");
}
