//! `quipu config`: which settings hold, where they come from, and a file to begin with.

use std::path::PathBuf;

use serde_json::json;

use super::failure::Failure;
use super::terminal::{self, Screen, print_note};
use crate::config::{self, Config, Flags, Resolved, Setting, Source, settings};

/// config show, check, template
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print every setting, its value, and where it comes from
    #[command(after_help = "Examples:
  quipu config show
  quipu config show --config quipu.toml --memory 4GiB
  quipu config show --json | jq '.settings[] | select(.source != \"default\")'")]
    Show {
        #[command(flatten)]
        flags: Flags,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Say whether a configuration file makes sense
    #[command(after_help = "Example:\n  quipu config check /etc/quipu.toml && systemctl restart quipu")]
    Check {
        /// The file
        file: PathBuf,
        /// Print nothing; the exit code says how it went
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Print a configuration file with every setting, explained and at its default
    #[command(after_help = "Example:\n  quipu config template > quipu.toml")]
    Template {
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        match self {
            Command::Show { flags, json } => {
                let (_, resolved) = load(flags)?;
                match json {
                    true => terminal::print(
                        json!({ "settings": resolved.iter().map(to_json).collect::<Vec<_>>() }),
                    ),
                    false => terminal::print(shown(&resolved)),
                }
            }
            Command::Check { file, quiet, json } => {
                let count = config::check_file(file).map_err(Failure::usage)?;
                match (json, quiet) {
                    (true, _) => terminal::print(json!({ "ok": true, "settings": count })),
                    (false, false) => {
                        terminal::print(format!("{} makes sense; it holds {count} settings", file.display()))
                    }
                    (false, true) => Ok(()),
                }
            }
            Command::Template { json: true } => {
                terminal::print(json!({ "settings": settings().map(describe).collect::<Vec<_>>() }))
            }
            Command::Template { json: false } => terminal::print(template().trim_end()),
        }
    }
}

/// The settings that hold here. Says what looks like a setting and is none.
pub fn load(flags: &Flags) -> Result<(Config, Vec<Resolved>), Failure> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for (name, meant) in config::misspelled_variables(names) {
        print_note(&format!("environment {name} is no setting and has no effect; did you mean {meant}?"));
    }
    config::load(flags, environment).map_err(Failure::usage)
}

/// A variable that is not UTF-8 cannot be a setting; it reads as its nearest text and is refused by name.
fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn shown(resolved: &[Resolved]) -> String {
    let screen = Screen::stdout();
    let row = |row: &Resolved| vec![row.setting.name.to_owned(), row.shown(), row.source.to_string()];
    if screen.is_terminal {
        return screen.table(&["SETTING", "VALUE", "FROM"], resolved.iter().map(row));
    }
    resolved.iter().map(|resolved| row(resolved).join("\t")).collect::<Vec<_>>().join("\n")
}

fn to_json(resolved: &Resolved) -> serde_json::Value {
    let Resolved { setting, source, .. } = resolved;
    let (origin, line) = match source {
        Source::Default => (None, None),
        Source::File { path, line } => (Some(path.display().to_string()), Some(line)),
        Source::Environment(variable) => (Some((*variable).to_owned()), None),
        Source::Flag(flag) => (Some(format!("--{flag}")), None),
    };
    json!({
        "name": setting.name, "value": resolved.shown(), "source": source.layer(), "origin": origin, "line": line,
        "default": setting.default,
    })
}

fn describe(setting: &Setting) -> serde_json::Value {
    json!({
        "name": setting.name, "flag": format!("--{}", setting.flag), "variable": setting.variable,
        "default": setting.default, "form": setting.value_name, "help": setting.help,
    })
}

/// Settings without a table first, because in TOML a table lasts until the next one begins.
fn template() -> String {
    let mut text = "# Settings of quipu. What is commented out shows the default.\n\
                    # A flag or an environment variable holds over what stands here; see `quipu config show`.\n"
        .to_owned();
    let mut settings: Vec<(&str, &str, &Setting)> = settings()
        .map(|setting| match setting.name.split_once('.') {
            Some((table, name)) => (table, name, setting),
            None => ("", setting.name, setting),
        })
        .collect();
    settings.sort_by_key(|(table, ..)| *table);
    let mut current = "";
    for (table, name, setting) in settings {
        if table != current {
            text.push_str(&format!("\n[{table}]\n"));
            current = table;
        }
        let Setting { help, value_name, default, .. } = setting;
        text.push_str(&format!("\n# {help} ({value_name})\n#{name} = {}\n", toml_value(default)));
    }
    text
}

fn toml_value(text: &str) -> String {
    let is_bare = matches!(text, "true" | "false") || text.parse::<i64>().is_ok();
    if is_bare { text.to_owned() } else { format!("{text:?}") }
}

#[cfg(test)]
mod tests {
    use super::template;
    use crate::config::{check_file, settings};

    #[test]
    fn the_template_is_a_valid_file_with_every_setting() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("quipu.toml");
        // A setting stands behind a bare #, a sentence behind # and a blank.
        let uncommented = |line: &str| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        };
        let all: String = template().lines().map(uncommented).collect();
        for (text, settings) in [(template(), 0), (all, settings().count())] {
            std::fs::write(&file, &text).unwrap();
            assert_eq!(check_file(&file).map_err(|error| format!("{error:#}\n{text}")), Ok(settings));
        }
    }
}
