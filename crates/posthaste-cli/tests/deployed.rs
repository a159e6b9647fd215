//! What the files under `deploy/` and the guide to the daemon tell people to run and to configure: the binary knows every
//! command and option, and accepts every configuration.
//!
//! Rows of the contract: OP3, OP8.

use std::path::Path;

use crate::support::Dir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The blocks of code of this language in a page.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = read(page);
    let open = format!("\n```{language}\n");
    let inside = text.split(&open).skip(1).filter_map(|rest| Some(rest.split_once("\n```")?.0.to_owned()));
    inside.collect()
}

/// Every command line of posthaste's: where it stands, and its words.
fn commands() -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut add = |place: &str, words: Vec<String>| found.push((place.to_owned(), words));
    let array = |text: &str| serde_json::from_str::<Vec<String>>(text).unwrap();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();

    let (image, compose, unit) =
        ("deploy/Dockerfile", "deploy/compose.yml", "deploy/systemd/posthaste.service");
    for line in read(image).lines().filter_map(|line| line.strip_prefix("CMD ")) {
        add(image, array(line));
    }
    for line in read(compose).lines().filter_map(|line| line.trim_start().strip_prefix("command: ")) {
        let words = array(line);
        if !words[0].starts_with('-') {
            add(compose, words);
        }
    }
    for line in read(unit).lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/posthaste "))
    {
        add(unit, words(line));
    }
    for page in ["deploy/README.md", "docs/src/guides/daemon.md"] {
        for block in blocks(page, "sh") {
            for line in block.lines().filter_map(|line| line.strip_prefix("posthaste ")) {
                add(page, words(line));
            }
        }
    }
    found
}

#[test]
fn op8_the_deployment_runs_commands_that_there_are() {
    let dir = Dir::new();
    let commands = commands();
    assert!(commands.len() >= 8, "the files are read wrongly: correct this test");
    for (place, words) in commands {
        let names = words.iter().take_while(|word| !word.starts_with(['-', '\''])).map(String::as_str);
        let help = dir.run(names.chain(["--help"]));
        assert_eq!(help.code, 0, "{place}: posthaste {words:?}: {help:?}");
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.out.contains(option.as_str()), "{place}: posthaste {words:?} has no {option}");
        }
    }
}

#[test]
fn op3_the_configurations_of_the_deployment_are_accepted() {
    let mut configurations = vec![("deploy/posthaste.toml", read("deploy/posthaste.toml"))];
    let guide = "docs/src/guides/daemon.md";
    configurations.extend(blocks(guide, "toml").into_iter().map(|text| (guide, text)));
    assert!(configurations.len() >= 3, "the guide is read wrongly: correct this test");
    for (place, text) in configurations {
        let dir = Dir::new();
        dir.write("posthaste.toml", &text);
        let mut check = dir.command(["config", "check"]);
        check.env("DB_PASSWORD", "secret").env("HOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let answer = crate::support::Answer::from(check.output().unwrap());
        assert_eq!(answer.code, 0, "{place}: {answer:?}\n{text}");
    }
}
