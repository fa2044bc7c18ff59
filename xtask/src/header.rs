//! `cargo xtask header`: `include/forebay.h` out of `src/abi` and `src/error.rs`.
//!
//! Owns what the C header is made of. cbindgen reads every file of `src/abi`; what crosses the
//! ABI is declared there and nowhere else. The status numbers come from the `Status` enum, whose
//! C names are not a rule cbindgen knows. Promises the same text from the same
//! sources. Reads source and never the compiled library, so it works while the core does not build.

use crate::args::Args;
use crate::{Outcome, proc};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use syn::{Expr, Item, Lit, Pat};

const HEADER: &str = "include/forebay.h";
const ABI: &str = "src/abi";
const ERRORS: &str = "src/error.rs";
/// The C name of the type that every function answers.
const STATUS: &str = "forebay_status";

/// Writes the header, or with `--check` fails when the committed one differs.
pub fn run(mut args: Args) -> Outcome<()> {
    let check = args.flag("--check");
    args.finish()?;
    let text = generate()?;
    if !check {
        proc::write(HEADER, &text)?;
        println!("{HEADER}: {} lines", text.lines().count());
        return Ok(());
    }
    let committed = proc::read(HEADER)?;
    if committed == text {
        println!("{HEADER} is up to date");
        return Ok(());
    }
    Err(format!(
        "{HEADER} is out of date; run: cargo xtask header\n{}",
        difference(&committed, &text)
    ))
}

/// The first line where two texts differ, from both.
fn difference(old: &str, new: &str) -> String {
    let same = old.lines().zip(new.lines()).take_while(|(a, b)| a == b).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(end of file)").to_owned();
    format!("line {}:\n- {}\n+ {}", same + 1, line(old), line(new))
}

fn generate() -> Outcome<String> {
    let files = proc::files(ABI, &["rs"]);
    if files.is_empty() {
        return Err(format!("{ABI} holds no source: there is nothing to export"));
    }
    let mut config = cbindgen::Config::from_file(proc::root().join("cbindgen.toml"))
        .map_err(|e| format!("cbindgen.toml: {e}"))?;
    for (rust, c) in type_names(&files)? {
        config.export.rename.insert(rust, c);
    }
    config.export.rename.insert("Status".to_owned(), STATUS.to_owned());
    config.export.exclude.extend(["Status".to_owned(), STATUS.to_owned()]);
    config.after_includes = Some(status_text(&proc::read(ERRORS)?)?);
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in sources(&files) {
        builder = builder.with_src(proc::root().join(file));
    }
    let bindings = builder.generate().map_err(|e| format!("cbindgen: {e}"))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).map_err(|e| format!("cbindgen: {e}"))?;
    // Rustdoc's link brackets say nothing in C.
    let text = text.replace("[`", "`").replace("`]", "`");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    Ok(lines.join("\n") + "\n")
}

/// The files to hand to cbindgen: it follows `mod` lines by itself, from the first.
fn sources(files: &[PathBuf]) -> Vec<PathBuf> {
    let entry = Path::new(ABI).join("mod.rs");
    if files.contains(&entry) { vec![entry] } else { files.to_vec() }
}

/// Rust types of the ABI that are named in Rust's way, with their C names.
fn type_names(files: &[PathBuf]) -> Outcome<BTreeMap<String, String>> {
    let mut names = BTreeMap::new();
    for file in files {
        let parsed = parse(file, &proc::read(file)?)?;
        for item in &parsed.items {
            let name = match item {
                Item::Struct(item) => item.ident.to_string(),
                Item::Union(item) => item.ident.to_string(),
                Item::Enum(item) => item.ident.to_string(),
                Item::Type(item) => item.ident.to_string(),
                _ => continue,
            };
            if name.starts_with(char::is_uppercase) {
                let c = c_name(&name);
                names.insert(name, c);
            }
        }
    }
    Ok(names)
}

fn parse(file: &Path, text: &str) -> Outcome<syn::File> {
    syn::parse_file(text).map_err(|e| format!("{}:{}: {e}", file.display(), e.span().start().line))
}

/// `PoolOptions` becomes `forebay_pool_options`.
fn c_name(rust: &str) -> String {
    let mut c = String::from("forebay");
    for (i, letter) in rust.chars().enumerate() {
        if letter.is_uppercase() || i == 0 {
            c.push('_');
        }
        c.extend(letter.to_lowercase());
    }
    c
}

/// The status type and its numbers as C, from the source of the `Status` enum.
fn status_text(source: &str) -> Outcome<String> {
    let parsed = parse(Path::new(ERRORS), source)?;
    let status = parsed.items.iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == "Status" => Some(item),
        _ => None,
    });
    let status = status.ok_or_else(|| format!("{ERRORS} has no enum Status"))?;
    let names = status_names(&parsed);
    let mut text = format!("\n{}typedef int32_t {STATUS};\n", comment(&status.attrs));
    for variant in &status.variants {
        let rust = variant.ident.to_string();
        let number = match &variant.discriminant {
            Some((_, Expr::Lit(lit))) => match &lit.lit {
                Lit::Int(number) => number.base10_digits().to_owned(),
                _ => return Err(format!("Status::{rust}: its number is no integer")),
            },
            _ => return Err(format!("Status::{rust} has no number of its own")),
        };
        let c = names.get(&rust).ok_or_else(|| format!("Status::name() has no {rust}"))?;
        text.push_str(&format!("\n{}#define {c} {number}\n", comment(&variant.attrs)));
    }
    Ok(text)
}

/// The arms of `Status::name`: variant and C name.
fn status_names(file: &syn::File) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let methods = file.items.iter().filter_map(|item| match item {
        Item::Impl(item) if item.trait_.is_none() => Some(&item.items),
        _ => None,
    });
    for item in methods.flatten() {
        let syn::ImplItem::Fn(method) = item else {
            continue;
        };
        let Some(syn::Stmt::Expr(Expr::Match(body), _)) = method.block.stmts.last() else {
            continue;
        };
        if method.sig.ident != "name" {
            continue;
        }
        for arm in &body.arms {
            let (Pat::Path(pattern), Expr::Lit(value)) = (&arm.pat, &*arm.body) else {
                continue;
            };
            if let (Some(last), Lit::Str(c)) = (pattern.path.segments.last(), &value.lit) {
                names.insert(last.ident.to_string(), c.value());
            }
        }
    }
    names
}

/// The documentation of an item as a C comment.
fn comment(attributes: &[syn::Attribute]) -> String {
    let mut text = String::from("/**\n");
    for attribute in attributes.iter().filter(|a| a.path().is_ident("doc")) {
        let syn::Meta::NameValue(meta) = &attribute.meta else {
            continue;
        };
        if let Expr::Lit(syn::ExprLit { lit: Lit::Str(line), .. }) = &meta.value {
            text.push_str(&format!(" *{}\n", line.value()));
        }
    }
    text + " */\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_become_c() {
        assert_eq!(c_name("PoolOptions"), "forebay_pool_options");
        assert_eq!(c_name("Stats"), "forebay_stats");
    }

    #[test]
    fn the_status_numbers_are_those_of_the_source() {
        let text = status_text(
            "/// What it says.\n#[repr(i32)] pub enum Status {\n/// Fine.\nOk = 0,\n\
             /// Bad.\nBusy = 15 }\nimpl Status { fn name(self) -> &'static str { match self {\n\
             Status::Ok => \"FOREBAY_OK\", Status::Busy => \"FOREBAY_ERROR_BUSY\" } } }",
        );
        let text = text.expect("is Rust");
        assert!(text.contains("/**\n * What it says.\n */\ntypedef int32_t forebay_status;\n"));
        assert!(text.contains("/**\n * Fine.\n */\n#define FOREBAY_OK 0\n"));
        assert!(text.ends_with("#define FOREBAY_ERROR_BUSY 15\n"));
    }

    #[test]
    fn a_status_without_a_c_name_is_an_error() {
        let answer = status_text("enum Status { Ok = 0 }");
        assert_eq!(answer, Err("Status::name() has no Ok".to_string()));
    }

    #[test]
    fn the_first_difference_is_told() {
        assert_eq!(difference("a\nb\n", "a\nc\n"), "line 2:\n- b\n+ c");
        assert_eq!(difference("a\n", "a\nc\n"), "line 2:\n- (end of file)\n+ c");
    }
}
