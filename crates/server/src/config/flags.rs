//! The flags of `quipu serve` and `quipu config show`, made from the table of settings.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{Setting, settings};

/// What was given on the command line.
#[derive(Debug, Default)]
pub struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// Name and text of each setting that was given.
    pub given: Vec<(&'static str, String)>,
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Flags, clap::Error> {
        let given = settings()
            .filter_map(|setting| Some((setting.name, matches.get_one::<String>(setting.flag)?.clone())))
            .collect();
        Ok(Flags { config: matches.get_one::<PathBuf>("config").cloned(), given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Flags::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file, in TOML")
            .long_help("Configuration file, in TOML [env: QUIPU_CONFIG]");
        settings().fold(command.arg(file), |command, setting| {
            let Setting { flag, help, default, variable, name, .. } = setting;
            let arg = Arg::new(*flag)
                .long(*flag)
                .value_name(setting.value_name)
                .action(ArgAction::Set)
                .help(format!("{help} [default: {default}]"))
                .long_help(format!("{help}\n[default: {default}] [env: {variable}] [file: {name}]"));
            // A switch needs no value: `--insecure` is `--insecure=true`.
            let is_switch = *default == "false";
            command.arg(if is_switch {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true")
            } else {
                arg
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args(command)
    }
}
