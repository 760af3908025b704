use std::io::{IsTerminal, Stdout, Write, stdout};

use anyhow::{Context, Error, Result};

/// Standard output, with colours where a person looks at it.
pub(crate) struct Screen {
    out: Stdout,
    colours: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let out = stdout();
        let colours = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { out, colours }
    }

    pub(crate) fn title(&mut self, text: &str) -> Result<()> {
        let text = self.paint("1", text);
        self.line(&format!("\n{text}\n"))
    }

    /// What is there.
    pub(crate) fn fact(&mut self, name: &str, text: &str) -> Result<()> {
        let name = self.paint("36", &format!("{name:<9}"));
        self.line(&format!("  {name} {text}"))
    }

    /// A step that worked: what was asked, and the answer.
    pub(crate) fn passed(&mut self, step: &str, to: &str, answer: &str) -> Result<()> {
        let tick = self.paint("32", "✓");
        let step = format!("{step:<22}");
        self.line(&format!("  {tick} {} {to:<20} {answer}", self.paint("1", &step)))
    }

    /// What another program has printed.
    pub(crate) fn block(&mut self, command: &str, text: &str) -> Result<()> {
        let command = self.paint("36", &format!("$ {command}"));
        self.line(&format!("\n  {command}\n{}", text.trim_end()))
    }

    pub(crate) fn line(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{text}").context("write to standard output")
    }

    /// Where standard output is gone, the exit code has to do.
    pub(crate) fn failure(&mut self, error: &Error) {
        let cross = self.paint("31", "✗");
        drop(writeln!(std::io::stderr(), "  {cross} {error:#}"));
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
