use super::file::{FromFile, parse};
use super::{Flags, Setting, Source, load, misspelled_variables, settings};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What `memory` is, given what each layer says.
fn memory(flag: Option<&str>, variable: Option<&str>, file: Option<&str>) -> (String, Source, u64) {
    let folder = tempfile::tempdir().unwrap();
    let config = file.map(|text| {
        let path = folder.path().join("quipu.toml");
        std::fs::write(&path, text).unwrap();
        path
    });
    let flags = Flags { config, given: flag.map(|text| ("memory", text.to_owned())).into_iter().collect() };
    let environment = |name: &str| variable.filter(|_| name == "QUIPU_MEMORY").map(str::to_owned);
    let (config, resolved) = load(&flags, environment).unwrap();
    let memory = resolved.into_iter().find(|resolved| resolved.setting.name == "memory").unwrap();
    let source = match memory.source {
        Source::File { path, line } => Source::File { path: PathBuf::from(path.file_name().unwrap()), line },
        other => other,
    };
    (memory.text, source, config.memory_bytes)
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let file = Some("# here\nmemory = \"96MiB\"");
    let at = |line| Source::File { path: "quipu.toml".into(), line };
    for (flag, variable, file, text, source) in [
        (Some("32MiB"), Some("64MiB"), file, "32MiB", Source::Flag("memory")),
        (None, Some("64MiB"), file, "64MiB", Source::Environment("QUIPU_MEMORY")),
        (None, None, file, "96MiB", at(2)),
        (None, None, Some("memory = 134217728"), "134217728", at(1)),
        (None, None, None, "1GiB", Source::Default),
    ] {
        let (found, from, bytes) = memory(flag, variable, file);
        assert_eq!((found.as_str(), &from), (text, &source));
        assert_eq!(Ok(bytes), super::units::size(text));
    }
}

#[test]
fn a_file_is_read_strictly() {
    let good = "data = \"/var/lib/quipu\"\ninsecure = true\n[http]\nx_request_id = \"ignore\"\n[resp]\nthreads = 2\n";
    let mut found = parse(good).unwrap();
    found.sort_unstable_by_key(|given| given.line);
    let expected = [
        ("data", "/var/lib/quipu", 1),
        ("insecure", "true", 2),
        ("http.x_request_id", "ignore", 4),
        ("resp.threads", "2", 6),
    ];
    assert_eq!(found, expected.map(|(name, text, line)| FromFile { name, text: text.to_owned(), line }));
    for (text, line, named) in [
        ("memroy = \"1GiB\"", 1, "memroy: there is no such setting; did you mean memory?"),
        ("\nmax-connections = 7", 2, "did you mean max_connections?"),
        ("[http]\nport = 7070", 2, "http.port: there is no such setting"),
        ("http = \"127.0.0.1:7070\"", 1, "http: there is no such setting; did you mean http.listen?"),
        ("colour = \"blue\"", 1, "colour: there is no such setting; there are data, http.listen"),
        ("memory = 1.5", 1, "memory: a string, a number"),
        ("memory = [1]", 1, "memory: a string, a number"),
        ("memory = 99999999999999999999", 1, "too large"),
        ("\nmemory = ", 2, "expected"),
        ("memory = \"1GiB\"\nmemory = \"2GiB\"", 2, "duplicate"),
    ] {
        let (found, error) = parse(text).expect_err(text);
        assert!(error.contains(named) && !error.contains('\n'), "{text:?} is refused with {error:?}");
        assert_eq!(found, line, "{text:?}");
    }
}

#[test]
fn bad_values_name_the_layer_and_the_setting() {
    for (name, text, named) in [
        ("http.listen", "nowhere", "flag --http: http.listen: \"nowhere\" is not an address"),
        ("durability", "often", "sync, interval:<ms> or none"),
        ("memory", "much", "at least 32MiB, like 512MiB"),
        ("partitions", "12", "a power of two"),
        ("partitions", "512", "a power of two"),
        ("id_window", "24", "at least 1s, like 90s"),
        ("resp.threads", "-1", "a number from 0 to 256"),
        ("resp.idle_timeout", "60", "or never"),
        ("resp.output_limit", "64KiB", "at least 1MiB"),
        ("resp.buffer_limit", "much", "at least 1MiB"),
        ("queue.requests", "0", "a number from 1"),
        ("queue.wait", "0s", "a duration like"),
        ("max_connections", "0", "a number from 1"),
        ("insecure", "yes", "true or false"),
        ("http.x_request_id", "off", "use or ignore"),
        ("resp.cluster_address", "node-1", "an address like"),
        ("resp.cluster_address", "node 1:7073", "an address like"),
        ("resp.cluster_address", "node-1:0", "an address like"),
        ("log", "loud=very", "a log filter"),
        ("data", "", "a folder"),
    ] {
        let flags = Flags { config: None, given: vec![(name, text.to_owned())] };
        let error = format!("{:#}", load(&flags, |_| None).err().expect(name));
        assert!(error.contains(named), "{name} = {text:?} is refused with {error:?}");
    }
}

#[test]
fn other_machines_are_served_only_on_demand() {
    for (address, insecure, allowed) in [
        ("127.0.0.1:0", "false", true),
        ("127.8.8.8:0", "false", true),
        ("[::1]:0", "false", true),
        ("0.0.0.0:0", "false", false),
        ("[::]:0", "false", false),
        ("10.0.0.1:0", "false", false),
        ("0.0.0.0:0", "true", true),
    ] {
        for name in ["http.listen", "resp.listen", "resp.cluster_listen"] {
            let given = vec![(name, address.to_owned()), ("insecure", insecure.to_owned())];
            let loaded = load(&Flags { config: None, given }, |_| None);
            assert_eq!(loaded.is_ok(), allowed, "{name} {address}, insecure {insecure}");
        }
    }
}

#[test]
fn names_are_unique() {
    let unique = |name: fn(&Setting) -> &'static str| settings().map(name).collect::<BTreeSet<_>>().len();
    assert_eq!(unique(|setting| setting.name), settings().count());
    assert_eq!(unique(|setting| setting.flag), settings().count());
    assert_eq!(unique(|setting| setting.variable), settings().count());
}

#[test]
fn a_variable_that_is_nearly_a_setting_is_noticed() {
    for (name, meant) in [
        ("QUIPU_MEMROY", Some("QUIPU_MEMORY")),
        ("QUIPU_MAX_CONECTIONS", Some("QUIPU_MAX_CONNECTIONS")),
        ("QUIPU_MEMORY", None),
        ("QUIPU_SERVER", None),
        // What Kubernetes sets for a service called quipu.
        ("QUIPU_SERVICE_HOST", None),
        ("QUIPU_PORT", None),
        ("QUIPU_PORT_7070_TCP", None),
        ("MEMROY", None),
    ] {
        let found = misspelled_variables([name.to_owned()].into_iter());
        assert_eq!(found.first().map(|(_, meant)| *meant), meant, "{name}");
    }
}
