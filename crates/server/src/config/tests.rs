use super::{Flags, SETTINGS, Setting, Source, load, parse_file};
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
        Source::File(path) => Source::File(PathBuf::from(path.file_name().unwrap())),
        other => other,
    };
    (memory.text, source, config.memory_bytes)
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let file = Some("memory = \"3MiB\"");
    for (flag, variable, file, text, source) in [
        (Some("1MiB"), Some("2MiB"), file, "1MiB", Source::Flag("memory")),
        (None, Some("2MiB"), file, "2MiB", Source::Environment("QUIPU_MEMORY")),
        (None, None, file, "3MiB", Source::File("quipu.toml".into())),
        (None, None, Some("memory = 4194304"), "4194304", Source::File("quipu.toml".into())),
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
    let mut found = parse_file(good).unwrap();
    found.sort_unstable();
    let expected = [
        ("data", "/var/lib/quipu"),
        ("http.x_request_id", "ignore"),
        ("insecure", "true"),
        ("resp.threads", "2"),
    ];
    assert_eq!(found, expected.map(|(name, text)| (name, text.to_owned())));
    for (text, named) in [
        ("memroy = \"1GiB\"", "memroy: there is no such setting"),
        ("[http]\nport = 7070", "http.port: there is no such setting"),
        ("http = \"127.0.0.1:7070\"", "http: there is no such setting"),
        ("memory = 1.5", "memory: a string, a number"),
        ("memory = [1]", "memory: a string, a number"),
        ("memory = ", "line 1"),
    ] {
        let error = format!("{:#}", parse_file(text).expect_err(text));
        assert!(error.contains(named), "{text:?} is refused with {error:?}");
    }
}

#[test]
fn bad_values_name_the_layer_and_the_setting() {
    for (name, text, named) in [
        ("http.listen", "nowhere", "flag --http: http.listen: \"nowhere\" is not an address"),
        ("durability", "often", "sync, interval:<ms> or none"),
        ("memory", "much", "a size like 512MiB"),
        ("partitions", "12", "a power of two"),
        ("partitions", "512", "a power of two"),
        ("id_window", "24", "a duration like"),
        ("resp.threads", "-1", "a number from 0 to 256"),
        ("resp.idle_timeout", "60", "or never"),
        ("resp.output_limit", "64KiB", "at least 1MiB"),
        ("resp.buffer_limit", "much", "at least 1MiB"),
        ("queue.requests", "0", "a number from 1"),
        ("queue.wait", "0s", "a duration like"),
        ("max_connections", "0", "a number from 1"),
        ("insecure", "yes", "true or false"),
        ("http.x_request_id", "off", "use or ignore"),
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
        for name in ["http.listen", "resp.listen"] {
            let given = vec![(name, address.to_owned()), ("insecure", insecure.to_owned())];
            let loaded = load(&Flags { config: None, given }, |_| None);
            assert_eq!(loaded.is_ok(), allowed, "{name} {address}, insecure {insecure}");
        }
    }
}

#[test]
fn names_are_unique() {
    let unique =
        |name: fn(&Setting) -> &'static str| SETTINGS.iter().map(name).collect::<BTreeSet<_>>().len();
    assert_eq!(unique(|setting| setting.name), SETTINGS.len());
    assert_eq!(unique(|setting| setting.flag), SETTINGS.len());
    assert_eq!(unique(|setting| setting.variable), SETTINGS.len());
}
