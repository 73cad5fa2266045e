//! Shell completions and man pages, for packagers and `install`, made from the same definitions as the help.

use std::collections::BTreeMap;
use std::io;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Command};
use clap_complete::Shell;

use super::outcome::{EXIT_CODES, Exit, Outcome, say};
use crate::error::{Context, Result};

/// The hidden command of a program beside this one that prints its manual pages and completions in JSON, for `dlio-fs install`.
pub const FILES_COMMAND: &str = "files-to-install";

/// Print the completion script of a shell
///
/// `dlio-fs install` places the scripts where the shells look; use this in all other cases.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  source <(dlio-fs completions bash)
  dlio-fs completions zsh > ~/.zfunc/_dlio-fs
  dlio-fs completions fish > ~/.config/fish/completions/dlio-fs.fish")]
pub(super) struct CompletionsArgs {
    #[arg(value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>()))]
    shell: Shell,
}

/// `program`: the whole command line.
pub(super) fn run(args: &CompletionsArgs, program: &Command) -> Outcome {
    say(String::from_utf8_lossy(&completions(args.shell, program)).trim_end()).map(|()| Exit::Done)
}

/// The completion script of a shell.
fn completions(shell: Shell, program: &Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program.clone(), program.get_name(), &mut script);
    script
}

/// The completions and man pages of a program, by their paths below a prefix.
pub(super) fn installed_files(program: &Command) -> Result<BTreeMap<String, String>> {
    let name = program.get_name();
    let scripts = [
        (Shell::Bash, format!("share/bash-completion/completions/{name}")),
        (Shell::Zsh, format!("share/zsh/site-functions/_{name}")),
        (Shell::Fish, format!("share/fish/vendor_completions.d/{name}.fish")),
    ];
    let scripts = scripts.map(|(shell, path)| (path, completions(shell, program)));
    let pages = man_pages(program.clone()).at("write", "a manual page")?;
    let pages = pages.into_iter().map(|(file, page)| (format!("share/man/man1/{file}"), page));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(scripts.into_iter().chain(pages).map(|(path, bytes)| (path, text(bytes))).collect())
}

/// What [`FILES_COMMAND`] does.
pub fn say_files(program: &Command) -> Outcome {
    say(serde_json::json!(installed_files(program)?)).map(|()| Exit::Done)
}

/// The man pages: file name, as `dlio-fs-mount.1`, and text in roff. One for the program and one for each
/// command.
///
/// Errors: none in practice, since the pages are written to memory.
pub(super) fn man_pages(mut program: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    program.build();
    let mut pages = Vec::new();
    add_pages(&program, None, &mut pages)?;
    Ok(pages)
}

/// The page of `command`, and those of the commands below it. `build` has given them their names: `dlio-fs-mount` as a
/// page, `dlio-fs mount` as it is typed.
fn add_pages(command: &Command, above: Option<&str>, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    pages.push(page(command, above)?);
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    below(command).try_for_each(|command| add_pages(command, Some(name), pages))
}

fn below(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
}

fn page(command: &Command, above: Option<&str>) -> io::Result<(String, Vec<u8>)> {
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    let man = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    // As in the help: a generated usage line would leave out the values of the options.
    let usage = command.clone().render_usage().to_string();
    section(&mut text, "SYNOPSIS", &roff(usage.trim_start_matches("Usage: ")));
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if below(command).next().is_some() {
        section(&mut text, "COMMANDS", &commands(command));
    }
    let (examples, notes) = split_help(&help);
    if !examples.is_empty() {
        section(&mut text, "EXAMPLES", &format!(".nf\n{}\n.fi", roff(&examples)));
    }
    let codes = notes.iter().find_map(|note| note.strip_prefix("Exit codes: "));
    section(&mut text, "EXIT STATUS", &exit_status(codes.unwrap_or(EXIT_CODES)));
    for note in notes.iter().filter(|note| !note.starts_with("Exit codes: ")) {
        section(&mut text, "NOTES", &roff(note));
    }
    section(&mut text, "FILES", &files());
    section(&mut text, "SEE ALSO", &see_also(command, above));
    Ok((man.get_filename(), text))
}

/// The examples as typed, and the other paragraphs, each on one line.
fn split_help(help: &str) -> (String, Vec<String>) {
    let (mut examples, mut notes) = (String::new(), Vec::new());
    for paragraph in help.trim().split("\n\n") {
        match paragraph.strip_prefix("Examples:\n").or_else(|| paragraph.strip_prefix("Example:\n")) {
            Some(lines) => examples.push_str(lines),
            None if paragraph.is_empty() => {}
            None => notes.push(paragraph.split_whitespace().collect::<Vec<_>>().join(" ")),
        }
    }
    (examples, notes)
}

fn commands(command: &Command) -> String {
    let row = |below: &Command| {
        let name = below.get_display_name().unwrap_or_else(|| below.get_name());
        let about = below.get_about().map(ToString::to_string).unwrap_or_default();
        format!(".TP\n{}(1)\n{}", roff(name), roff(&about))
    };
    below(command).map(row).collect::<Vec<_>>().join("\n")
}

/// `0 done; 1 it failed` as a list.
fn exit_status(codes: &str) -> String {
    let codes = codes.trim_start_matches("Exit codes: ").trim_end_matches('.').split("; ");
    let row = |code: &str| {
        let (number, meaning) = code.split_once(' ').unwrap_or((code, ""));
        format!(".TP\n{}\n{}", roff(number), roff(meaning))
    };
    codes.map(row).collect::<Vec<_>>().join("\n")
}

fn files() -> String {
    let rows = [
        ("MOUNTPOINT/.dlio/", "statistics and commands of a mount; not listed"),
        ("FAST/.dlio-fs/, SLOW/.dlio-fs/", "the daemon's own files on each tier"),
        ("/etc/dlio-fs/NAME.toml", "configuration of the service dlio-fs@NAME"),
        ("share/doc/dlio-fs/config.example.toml", "every key with its default"),
    ];
    rows.map(|(path, what)| format!(".TP\n{}\n{}", roff(path), roff(what))).join("\n")
}

/// The parent page and its siblings; for the program, all pages.
fn see_also(command: &Command, above: Option<&str>) -> String {
    let mut pages: Vec<String> = above.into_iter().map(|name| format!("{}(1)", roff(name))).collect();
    pages.extend(below(command).map(|below| {
        let name = below.get_display_name().unwrap_or_else(|| below.get_name());
        format!("{}(1)", roff(name))
    }));
    pages.push("mount(8)".to_owned());
    format!("{}.\n.PP\nThe documentation is in share/doc/dlio\\-fs/docs.", pages.join(", "))
}

fn section(text: &mut Vec<u8>, name: &str, body: &str) {
    let name = if name.contains(' ') { format!("\"{name}\"") } else { name.to_owned() };
    text.extend(format!(".SH {name}\n{body}\n").as_bytes());
}

/// Escapes plain text so that roff shows it unchanged.
fn roff(text: &str) -> String {
    let line = |line: &str| {
        let escaped = line.replace('\\', "\\e").replace('-', "\\-");
        if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_examples_as_they_are_typed_and_names_only_pages_that_are_there() {
        let pages = crate::cli::man_pages().expect("written to memory");
        let text = |name: &str| {
            let page = pages.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("no {name}"));
            String::from_utf8_lossy(&page.1).into_owned()
        };
        let umount = text("dlio-fs-umount.1");
        for part in [
            ".SH EXAMPLES\n.nf\n  dlio\\-fs umount /mnt/train\n",
            ".SH \"EXIT STATUS\"\n.TP\n0\nleft with everything on the slow tier\n.TP\n3\n",
            ".SH FILES\n",
            ".SH \"SEE ALSO\"\ndlio\\-fs(1), mount(8).\n",
        ] {
            assert!(umount.contains(part), "no {part} in {umount}");
        }
        assert!(text("dlio-fs-mount.1").contains(".SH NOTES\nA mount whose daemon died"));
        for (file, page) in &pages {
            let page = String::from_utf8_lossy(page).replace("\\-", "-");
            let named = page.split([' ', ',', '\n']).filter_map(|word| word.split_once("(1)")).map(|(name, _)| name);
            for name in named.filter(|name| name.starts_with("dlio-fs")) {
                assert!(pages.iter().any(|(other, _)| *other == format!("{name}.1")), "{file} names {name}");
            }
        }
    }

    #[test]
    fn roff_shows_text_unchanged() {
        assert_eq!(roff("-o x\\,y\n.dlio"), "\\-o x\\e,y\n\\&.dlio");
    }
}
