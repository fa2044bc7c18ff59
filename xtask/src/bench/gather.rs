//! Group `gather`: what it costs to make room in a checkerboard, and the capped pool.
//!
//! Runs the bench program `benches/gather.rs`, which prints its rows as one JSON object, and
//! takes them as they are.

use super::{Row, rows_from_json};
use crate::{Outcome, proc};

/// Runs the program; `quick` is passed on.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let mut cargo = proc::cargo();
    cargo.args(["bench", "--quiet", "--bench", "gather", "--", "--json"]);
    if quick {
        cargo.arg("--quick");
    }
    let said = proc::capture(&mut cargo)?;
    rows_from_json(object(&said))
}

/// The JSON object in what was printed; lines before and after it are left out.
pub fn object(text: &str) -> &str {
    match (text.find('{'), text.rfind('}')) {
        (Some(from), Some(to)) if from < to => &text[from..=to],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_found_between_other_lines() {
        assert_eq!(object("running\n{\"rows\":[{}]}\ndone\n"), "{\"rows\":[{}]}");
        assert_eq!(object("} {"), "} {");
    }
}
