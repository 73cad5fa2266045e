//! What a packager or `install` takes from the program itself: shell completions and man pages, made from the same
//! definitions as the help.

use std::io;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Exit, Outcome, say};

/// Print the completion script of a shell
///
/// `dlio-fs install` puts them where the shells look; this is for all other cases.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  source <(dlio-fs completions bash)
  dlio-fs completions zsh > ~/.zfunc/_dlio-fs
  dlio-fs completions fish > ~/.config/fish/completions/dlio-fs.fish")]
pub(super) struct CompletionsArgs {
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Outcome {
    say(String::from_utf8_lossy(&completions(args.shell)).trim_end()).map(|()| Exit::Done)
}

/// The completion script of a shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "dlio-fs", &mut script);
    script
}

/// The man pages: file name, as `dlio-fs-mount.1`, and text in roff. One for the program and one for each command.
///
/// Errors: none in practice, for they are written to memory.
pub fn man_pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut program = Cli::command();
    program.build();
    let mut pages = vec![page(program.clone())?];
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        // `build` has given it its names: `dlio-fs-mount` as a page, `dlio-fs mount` as it is typed.
        pages.push(page(command.clone())?);
    }
    Ok(pages)
}

fn page(command: clap::Command) -> io::Result<(String, Vec<u8>)> {
    let usage = command.clone().render_usage().to_string();
    let man = clap_mangen::Man::new(command);
    let mut text = Vec::new();
    man.render(&mut text)?;
    let (before, rest) = split_at_line(&text, b".SH SYNOPSIS");
    let (_, after) = split_at_line(rest.get(1..).unwrap_or_default(), b".SH ");
    // As in the help: the one that is made of the options leaves out their values.
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    Ok((man.get_filename(), [before, b".SH SYNOPSIS\n", usage.as_bytes(), b"\n", after].concat()))
}

/// The text up to the first line that begins so, and from there on.
fn split_at_line<'a>(text: &'a [u8], begin: &[u8]) -> (&'a [u8], &'a [u8]) {
    let at = (0..text.len()).find(|&at| (at == 0 || text[at - 1] == b'\n') && text[at..].starts_with(begin));
    text.split_at(at.unwrap_or(text.len()))
}
