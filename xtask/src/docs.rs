//! `cargo xtask docs`: the book and the documentation of the library, as a site below `target/site`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::layout::Layout;
use crate::step::finish;
use crate::{cargo, tool};

/// Version of the program that renders the book.
const MDBOOK: &str = "0.5.4";

/// Renders the book into `target/site` and the documentation into `target/site/api`.
pub(crate) fn run(layout: &Layout) -> Result<()> {
    let site = layout.target.join("site");
    if site.exists() {
        fs::remove_dir_all(&site).with_context(|| format!("cannot remove {}", site.display()))?;
    }
    let mut book = Command::new(tool::build(layout, "mdbook", MDBOOK)?);
    book.arg("build").arg(layout.root.join("docs")).arg("--dest-dir").arg(&site);
    finish(book).context("the book cannot be rendered")?;
    let mut api = cargo::command();
    api.args(["doc", "--package", "posthaste", "--all-features", "--no-deps"]);
    api.env("RUSTDOCFLAGS", "-D warnings").current_dir(&layout.root);
    finish(api)?;
    copy(&layout.target.join("doc"), &site.join("api"))?;
    println!("the site is in {}", site.display());
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
