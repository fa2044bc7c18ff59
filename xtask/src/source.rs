//! Rust source as tokens: what the checks of `tidy` and the header need to see.
//!
//! Owns reading a file into tokens with line numbers, and walking them with knowledge of
//! modules and of code that only tests compile. Works on tokens so that macro
//! bodies are seen as well. Must not judge what it finds; `tidy` does.

use crate::Outcome;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The tokens of Rust source; the error names the line.
pub fn tokens(text: &str) -> Outcome<TokenStream> {
    text.parse().map_err(|e: proc_macro2::LexError| format!("line {}: {e}", e.span().start().line))
}

/// The identifier at `i`, if there is one.
pub fn ident(list: &[TokenTree], i: usize) -> Option<String> {
    match list.get(i)? {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    }
}

/// The group with this delimiter at `i`, if there is one.
pub fn group(list: &[TokenTree], i: usize, delimiter: Delimiter) -> Option<&Group> {
    match list.get(i)? {
        TokenTree::Group(g) if g.delimiter() == delimiter => Some(g),
        _ => None,
    }
}

/// Whether the token at `i` is this punctuation mark.
pub fn punct(list: &[TokenTree], i: usize, mark: char) -> bool {
    matches!(list.get(i), Some(TokenTree::Punct(p)) if p.as_char() == mark)
}

/// Whether `::` starts at `i`.
pub fn path_sep(list: &[TokenTree], i: usize) -> bool {
    punct(list, i, ':') && punct(list, i + 1, ':')
}

/// The line of the token at `i`, counted from 1; 0 past the end.
pub fn line(list: &[TokenTree], i: usize) -> usize {
    list.get(i).map_or(0, |t| t.span().start().line)
}

/// How many tokens the item at `i` takes when only tests compile it; 0 when it is no
/// such item. Covers `#[cfg(test)]`, `#[cfg(all(test, ...))]`, `#[test]` and what follows.
pub fn test_only_item(list: &[TokenTree], i: usize) -> usize {
    let mut end = i;
    let mut test_only = false;
    while punct(list, end, '#') {
        let Some(attribute) = group(list, end + 1, Delimiter::Bracket) else {
            break;
        };
        test_only |= means_test(attribute.stream());
        end += 2;
    }
    if !test_only {
        return 0;
    }
    while end < list.len() {
        let last = group(list, end, Delimiter::Brace).is_some() || punct(list, end, ';');
        end += 1;
        if last {
            break;
        }
    }
    end - i
}

/// Whether an attribute's inside is `test`, or a `cfg` that needs `test`.
fn means_test(attribute: TokenStream) -> bool {
    let list: Vec<TokenTree> = attribute.into_iter().collect();
    match ident(&list, 0).as_deref() {
        Some("test") => list.len() == 1,
        Some("cfg") => group(&list, 1, Delimiter::Parenthesis)
            .is_some_and(|inside| needs_test(&inside.stream().into_iter().collect::<Vec<_>>())),
        _ => false,
    }
}

fn needs_test(list: &[TokenTree]) -> bool {
    (0..list.len()).any(|i| match ident(list, i).as_deref() {
        Some("test") => true,
        Some("all") => group(list, i + 1, Delimiter::Parenthesis)
            .is_some_and(|inside| needs_test(&inside.stream().into_iter().collect::<Vec<_>>())),
        _ => false,
    })
}

/// Calls `visit(list, i, depth)` for every token outside code that only tests compile;
/// `depth` counts the modules around it that are written in this file.
pub fn walk(stream: TokenStream, visit: &mut impl FnMut(&[TokenTree], usize, usize)) {
    walk_at(stream, 0, visit);
}

fn walk_at(stream: TokenStream, depth: usize, visit: &mut impl FnMut(&[TokenTree], usize, usize)) {
    let list: Vec<TokenTree> = stream.into_iter().collect();
    let mut i = 0;
    while i < list.len() {
        let skip = test_only_item(&list, i);
        if skip > 0 {
            i += skip;
            continue;
        }
        visit(&list, i, depth);
        if let TokenTree::Group(inside) = &list[i] {
            let module = i >= 2
                && inside.delimiter() == Delimiter::Brace
                && ident(&list, i - 2).as_deref() == Some("mod")
                && ident(&list, i - 1).is_some();
            walk_at(inside.stream(), depth + usize::from(module), visit);
        }
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        walk(tokens(text).expect("lexes"), &mut |list, i, depth| {
            found.extend(ident(list, i).map(|w| format!("{w}{depth}")));
        });
        found
    }

    #[test]
    fn test_only_code_is_left_out() {
        let text = "#[cfg(test)] mod tests { fn a() {} } fn b() {}
            #[cfg(all(test, loom))] use x::y; #[test] fn c() {} #[cfg(not(test))] fn d() {}
            #[inline] #[cfg(test)] fn e() {}";
        let seen = words(text);
        for gone in ["a0", "a1", "y0", "c0", "e0"] {
            assert!(!seen.contains(&gone.to_string()), "{gone} in {seen:?}");
        }
        assert!(seen.contains(&"b0".to_string()) && seen.contains(&"d0".to_string()));
    }

    #[test]
    fn depth_counts_inline_modules_and_not_blocks() {
        assert_eq!(words("mod m { fn f() { g } }"), ["mod0", "m0", "fn1", "f1", "g1"]);
    }

    #[test]
    fn lines_are_known() {
        let list: Vec<TokenTree> = tokens("a\n\nb").expect("lexes").into_iter().collect();
        assert_eq!((line(&list, 0), line(&list, 1), line(&list, 2)), (1, 3, 0));
    }
}
