//! Sizes: lines of a file, lines of a function, columns of a line; and words that must
//! not be left in code.
//!
//! Owns the limits. A function is counted from its signature to its closing brace, so its
//! documentation costs nothing.

use super::{GENERATED, Source, Violation, is_product};
use proc_macro2::Span;
use syn::visit::{self, Visit};

/// Most lines of a file.
const FILE_LINES: usize = 600;
/// Most lines of a function.
const FUNCTION_LINES: usize = 70;
/// Most columns of a line, counted in characters.
const COLUMNS: usize = 100;

/// Words that mark unfinished work. Put together here so that this file does not hold them.
const FORBIDDEN: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("dbg", "!"),
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
];

/// Checks the sizes of Rust and of C and C++ files.
pub fn check(rust: &[Source], c: &[Source]) -> Vec<Violation> {
    let mut found = Vec::new();
    let written = c.iter().filter(|f| !GENERATED.iter().any(|g| f.path.ends_with(g)));
    for file in rust.iter().chain(written) {
        check_lines(file, &mut found);
    }
    for file in rust {
        check_functions(file, &mut found);
        if is_product(&file.path) && !file.text.starts_with("//!") {
            let message = "opens with what the file is for: a `//!` comment";
            found.push(Violation::new(&file.path, 1, message));
        }
    }
    found
}

fn check_lines(file: &Source, found: &mut Vec<Violation>) {
    let count = file.text.lines().count();
    if count > FILE_LINES {
        let message = format!("{count} lines, at most {FILE_LINES}: split the file");
        found.push(Violation::new(&file.path, FILE_LINES + 1, message));
    }
    for (i, text) in file.text.lines().enumerate() {
        let columns = text.chars().count();
        if columns > COLUMNS {
            let message = format!("{columns} columns, at most {COLUMNS}");
            found.push(Violation::new(&file.path, i + 1, message));
        }
    }
}

struct Functions<'a> {
    file: &'a Source,
    found: &'a mut Vec<Violation>,
}

impl Functions<'_> {
    fn judge(&mut self, signature: &syn::Signature, end: Span) {
        let first = signature.fn_token.span.start().line;
        let lines = (end.end().line + 1).saturating_sub(first);
        if lines > FUNCTION_LINES {
            let name = &signature.ident;
            let message = format!("fn {name}: {lines} lines, at most {FUNCTION_LINES}");
            self.found.push(Violation::new(&self.file.path, first, message));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.judge(&item.sig, item.block.brace_token.span.close());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.judge(&item.sig, item.block.brace_token.span.close());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.judge(&item.sig, block.brace_token.span.close());
        }
        visit::visit_trait_item_fn(self, item);
    }
}

fn check_functions(file: &Source, found: &mut Vec<Violation>) {
    match syn::parse_file(&file.text) {
        Ok(parsed) => Functions { file, found }.visit_file(&parsed),
        Err(e) => {
            let message = format!("cannot be parsed as Rust: {e}");
            found.push(Violation::new(&file.path, e.span().start().line, message));
        }
    }
}

/// Finds words that mark unfinished work, in code and in comments.
pub fn forbidden_words<'a>(files: impl Iterator<Item = &'a Source>) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in files {
        for (i, text) in file.text.lines().enumerate() {
            for word in FORBIDDEN.iter().filter(|word| holds_word(text, word)) {
                found.push(Violation::new(
                    &file.path,
                    i + 1,
                    format!("{word} is not left in code"),
                ));
            }
        }
    }
    found
}

/// Whether `word` stands in `text` with no letter, digit or underscore right beside it.
fn holds_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(part);
        let after = text[at + word.len()..].chars().next().is_some_and(part);
        !before && (!after || word.ends_with('!'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn messages(file: Source) -> Vec<(usize, String)> {
        check(&[file], &[]).into_iter().map(|v| (v.line, v.message)).collect()
    }

    #[test]
    fn a_long_function_is_found_and_a_short_one_is_not() {
        let body = "    let _x = 1;\n".repeat(69);
        let text = format!("//! A file.\n\nimpl T {{\nfn long() {{\n{body}}}\n}}\n");
        let found = messages(sample("src/heap/a.rs", &text));
        assert_eq!(found, [(4, "fn long: 71 lines, at most 70".to_string())]);
        let body = "    let _x = 1;\n".repeat(68);
        let text = format!("//! A file.\n\n/// Doc.\n/// Doc.\nfn fits() {{\n{body}}}\n");
        assert_eq!(messages(sample("src/heap/a.rs", &text)), []);
    }

    #[test]
    fn long_lines_long_files_and_missing_openings_are_found() {
        let text = format!("//! {}\n", "x".repeat(97));
        assert_eq!(messages(sample("src/a.rs", &text))[0].0, 1);
        let text = format!("//! A file.\n{}", "\n".repeat(600));
        assert_eq!(messages(sample("src/a.rs", &text))[0].0, 601);
        assert_eq!(messages(sample("src/a.rs", "use x;\n")).len(), 1);
        assert_eq!(messages(sample("tests/a.rs", "use x;\n")).len(), 0);
    }

    #[test]
    fn the_generated_header_may_be_long() {
        let long = "\n".repeat(700);
        assert_eq!(check(&[], &[sample("include/forebay.h", &long)]), []);
        assert_eq!(check(&[], &[sample("tests/c/a.c", &long)]).len(), 1);
    }

    #[test]
    fn forbidden_words_are_found_as_words() {
        let word = FORBIDDEN[0];
        let text = format!("// {word}: later\nlet {word}S = 1;\n    {}(x)\n", FORBIDDEN[2]);
        let file = sample("src/a.rs", &text);
        let lines: Vec<usize> =
            forbidden_words([&file].into_iter()).iter().map(|v| v.line).collect();
        assert_eq!(lines, [1, 3]);
    }
}
