//! Tells the program the commit it is built from: of the checkout, or `STAUNCH_COMMIT` where there is none (an image's build).

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=STAUNCH_COMMIT");
    println!("cargo::rerun-if-changed=.git/HEAD");
    println!("cargo::rerun-if-changed=.git/logs/HEAD");
    let given = std::env::var("STAUNCH_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(of_checkout).unwrap_or_else(|| "0000000".to_owned());
    println!("cargo::rustc-env=STAUNCH_COMMIT={commit}");
}

fn of_checkout() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
