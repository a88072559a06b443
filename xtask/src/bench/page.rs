//! Results written down: a JSON file and a picture in `target/bench`, and the sections of `docs/benchmarks.md`.
//!
//! The page is filled from the JSON files only, so that it cannot say what was not measured. Each section stands between
//! two comments; what is between them is replaced, what is around them is for people to write.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::svg::Chart;
use super::table::Table;
use crate::workspace::top;

/// What a measurement found, and how to show it.
pub trait Findings: Serialize + DeserializeOwned {
    /// Name of the section, of the sub-command and of the files.
    const NAME: &'static str;

    /// The figures.
    fn tables(&self) -> Vec<Table>;

    /// Sentences that belong to them.
    fn notes(&self) -> Vec<String>;

    /// The picture; a section without one has none.
    fn chart(&self) -> Option<Chart>;

    /// What must hold and did not; most sections only measure.
    fn failures(&self) -> Vec<String> {
        Vec::new()
    }
}

/// On what and how it was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Circumstances {
    /// What to type to do it again.
    pub command: String,
    /// The day.
    pub measured_on: String,
    /// The flag that made it a look or a part instead of a measurement.
    pub incomplete_by: Option<String>,
    /// Where.
    pub machine: Machine,
    /// Names and versions of all servers.
    pub versions: Vec<(String, String)>,
    /// Of the sources that quipu was built from.
    pub revision: String,
}

impl Circumstances {
    fn shown(&self) -> String {
        let versions: Vec<String> =
            self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        format!(
            "Measured on {} with `{}`: {}; {} (quipu at {}).",
            self.measured_on,
            self.command,
            self.machine.shown(),
            versions.join(", "),
            self.revision
        )
    }
}

/// A file in `target/bench`. It is written from a reference and read into a value.
#[derive(Serialize, Deserialize)]
struct Document<F> {
    #[serde(flatten)]
    circumstances: Circumstances,
    findings: F,
}

/// Prints the tables and writes the files of a section into `folder`.
pub fn publish<F: Findings>(folder: &Path, circumstances: Circumstances, findings: &F) -> Result<()> {
    let tables = findings.tables();
    ensure!(
        tables.iter().any(|table| !table.rows.is_empty()),
        "no row has such a name; see docs/benchmarks.md"
    );
    for table in tables {
        println!("\n{}", table.text().trim_end());
    }
    for note in findings.notes() {
        println!("{note}");
    }
    std::fs::create_dir_all(folder)?;
    if let Some(chart) = findings.chart() {
        std::fs::write(folder.join(format!("{}.svg", F::NAME)), chart.render())?;
    }
    let path = json_path(folder, F::NAME);
    let document = Document { circumstances, findings };
    std::fs::write(&path, serde_json::to_string_pretty(&document)? + "\n")?;
    println!("everything measured is in {}", path.display());
    Ok(())
}

fn json_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}

/// Writes the section's part of the page, from what was measured last.
pub fn write_docs<F: Findings>(folder: &Path) -> Result<()> {
    let path = json_path(folder, F::NAME);
    let text = std::fs::read(&path)
        .with_context(|| format!("{}: measure first, with cargo xtask bench {}", path.display(), F::NAME))?;
    let document: Document<F> = serde_json::from_slice(&text)
        .with_context(|| format!("{}: of another version? Measure again", path.display()))?;
    if let Some(flag) = &document.circumstances.incomplete_by {
        bail!("{} was run with {flag}, which is not the whole measurement; run it without", F::NAME);
    }
    let docs = top().join("docs");
    let page = docs.join("benchmarks.md");
    let old = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let new = replace_section(&old, F::NAME, &section(&document))?;
    if let Some(chart) = document.findings.chart() {
        std::fs::create_dir_all(docs.join("benchmarks"))?;
        std::fs::write(docs.join(picture_path::<F>()), chart.render())?;
    }
    std::fs::write(&page, new)?;
    println!("{}: section {} is up to date", page.display(), F::NAME);
    Ok(())
}

/// Relative to the folder of the page.
fn picture_path<F: Findings>() -> String {
    format!("benchmarks/{}.svg", F::NAME)
}

fn section<F: Findings>(document: &Document<F>) -> String {
    let mut parts = vec![wrapped(&document.circumstances.shown())];
    if let Some(chart) = document.findings.chart() {
        parts.push(format!("![{}: {}]({})\n", chart.title, chart.subtitle, picture_path::<F>()));
    }
    parts.extend(document.findings.tables().iter().map(Table::markdown));
    let notes = document.findings.notes();
    if !notes.is_empty() {
        parts.push(notes.iter().map(|note| format!("- {note}\n")).collect());
    }
    parts.join("\n")
}

/// Lines as long as those that people write on the page.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 120;
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.len() + 1 + word.len() > WIDTH {
            lines.push_str(&std::mem::take(&mut line));
            lines.push('\n');
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &line + "\n"
}

/// The page with another text between the marks of a section.
fn replace_section(page: &str, name: &str, text: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- measured: {name} -->\n"), format!("<!-- end of {name} -->"));
    let Some((before, rest)) = page.split_once(&begin) else {
        bail!("docs/benchmarks.md has no line {:?}", begin.trim_end());
    };
    let Some((_, after)) = rest.split_once(&end) else {
        bail!("docs/benchmarks.md has no line {end:?} after {:?}", begin.trim_end());
    };
    Ok(format!("{before}{begin}\n{}\n\n{end}{after}", text.trim_end()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The page as it is must have a place for every section.
    pub fn assert_page_has_a_place_for(name: &str) {
        let page = std::fs::read_to_string(top().join("docs/benchmarks.md")).unwrap();
        let replaced = replace_section(&page, name, "ONLY HERE").unwrap();
        assert_eq!(replaced.matches("ONLY HERE").count(), 1);
        assert_eq!(replace_section(&replaced, name, "ONLY HERE").unwrap(), replaced, "twice is once");
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let page = "before\n<!-- measured: a -->\nold\n<!-- end of a -->\n\n<!-- measured: b -->\n<!-- end of b -->\nafter\n";
        let expected = "before\n<!-- measured: a -->\n\nnew\n\n<!-- end of a -->\n\n<!-- measured: b -->\n<!-- end of b -->\nafter\n";
        assert_eq!(replace_section(page, "a", "new\n").unwrap(), expected);
        for name in ["c", ""] {
            assert!(replace_section(page, name, "new").is_err(), "{name}");
        }
        assert!(replace_section("<!-- measured: a -->\nno end", "a", "new").is_err());
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        figure: f64,
    }

    impl Findings for Sample {
        const NAME: &'static str = "sample";

        fn tables(&self) -> Vec<Table> {
            let mut table = Table::new("Things", ["thing", "figure"]);
            table.push(vec!["one".into(), self.figure.to_string()]);
            vec![table]
        }

        fn notes(&self) -> Vec<String> {
            vec!["A note.".into()]
        }

        fn chart(&self) -> Option<Chart> {
            None
        }
    }

    fn circumstances(incomplete_by: Option<&str>) -> Circumstances {
        Circumstances {
            command: "cargo xtask bench sample".into(),
            measured_on: "2026-02-23".into(),
            incomplete_by: incomplete_by.map(str::to_string),
            machine: Machine {
                cpu: "CPU".into(),
                cores: 2,
                memory_gib: 24.0,
                kernel: "Linux 6".into(),
                file_system: "ext4".into(),
            },
            versions: vec![("redis".into(), "7.0.15".into()), ("quipu".into(), "0.1.0".into())],
            revision: "abc123".into(),
        }
    }

    #[test]
    fn results_survive_their_file_and_become_a_section() {
        let folder = tempfile::tempdir().unwrap();
        publish(folder.path(), circumstances(None), &Sample { figure: 1.5 }).unwrap();
        let text = std::fs::read_to_string(folder.path().join("sample.json")).unwrap();
        let document: Document<Sample> = serde_json::from_str(&text).unwrap();
        assert_eq!(document.findings, Sample { figure: 1.5 });
        assert_eq!(
            section(&document),
            "Measured on 2026-02-23 with `cargo xtask bench sample`: 2 cores of CPU, 24 GiB, Linux 6, ext4; redis 7.0.15, quipu 0.1.0\n\
             (quipu at abc123).\n\n**Things**\n\n| thing | figure |\n|---|---:|\n| one | 1.5 |\n\n- A note.\n"
        );
    }

    #[test]
    fn a_look_is_not_written_down() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write_docs::<Sample>(folder.path()).is_err(), "nothing was measured");
        publish(folder.path(), circumstances(Some("--quick")), &Sample { figure: 1.5 }).unwrap();
        let error = write_docs::<Sample>(folder.path()).unwrap_err().to_string();
        assert!(error.contains("--quick"), "{error}");
    }
}
