//! Planning instances as text: one buffer a line under a header.
//!
//! The header names the columns, in any order: `id`, `lower` (or `begin`, `start`, `birth`),
//! `upper` (or `end`, `death`), `size`; and, where wanted, `alignment`, `offset` (or `fixed`, empty
//! for none) and `tag`, a word that changes nothing of the plan. A lifetime goes from `lower` up
//! to, and without, `upper`: MiniMalloc's form. Ids may be words; buffers then have their row's
//! number as id, and the words are kept. Rows of size 0 need no place: they are left out and
//! counted. Any bytes give buffers or an error that names the line. Owns nothing. Cost: one pass.

use super::Buffer;
use crate::error::{Error, Result, Status};
use std::path::Path;

/// An instance that was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Instance {
    /// The buffers, in the order of their lines.
    pub buffers: Vec<Buffer>,
    /// What the buffers are called, where ids are words; else empty.
    pub names: Vec<String>,
    /// The buffers' tags, where there is a column of them; else empty.
    pub tags: Vec<String>,
    /// Rows of size 0.
    pub left_out: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Column {
    Id,
    Birth,
    Death,
    Size,
    Alignment,
    Fixed,
    Tag,
}

/// A line: what the buffer is called, its tag, the buffer.
type Row<'a> = (&'a str, &'a str, Buffer);

const COLUMNS: [(&str, Column); 14] = [
    ("id", Column::Id),
    ("lower", Column::Birth),
    ("begin", Column::Birth),
    ("start", Column::Birth),
    ("birth", Column::Birth),
    ("upper", Column::Death),
    ("end", Column::Death),
    ("death", Column::Death),
    ("size", Column::Size),
    ("alignment", Column::Alignment),
    ("align", Column::Alignment),
    ("offset", Column::Fixed),
    ("fixed", Column::Fixed),
    ("tag", Column::Tag),
];

fn bad(line: usize, text: String) -> Error {
    Error::new(Status::InvalidArgument, format!("line {line}: {text}"))
}

/// Whether a file that begins with `line` is one of these.
pub fn is_header(line: &str) -> bool {
    header(line).is_ok()
}

/// Reads the instance in a file.
///
/// # Errors
/// [`Status::InvalidArgument`] names the file and the line, or says why it cannot be read.
pub fn read_file(path: &Path) -> Result<Instance> {
    let named = |why: &dyn std::fmt::Display| {
        Error::new(Status::InvalidArgument, format!("{}: {why}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    read(&text).map_err(|error| named(&error.message()))
}

/// Reads an instance.
///
/// # Errors
/// [`Status::InvalidArgument`] names the line and what is accepted there. What the planner itself
/// refuses (an empty lifetime, an id given twice) is left to it.
pub fn read(text: &str) -> Result<Instance> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (at, first) = lines.next().ok_or_else(|| bad(1, "an empty file".to_owned()))?;
    let columns = header(first).map_err(|why| bad(at, why))?;
    let mut rows = Vec::new();
    for (at, line) in lines {
        rows.push((at, row(&columns, line).map_err(|why| bad(at, why))?));
    }
    let words = rows.iter().any(|(_, (name, ..))| name.parse::<u64>().is_err());
    let tagged = columns.contains(&Column::Tag);
    let mut instance = Instance::default();
    for (number, (at, (name, tag, buffer))) in (0..).zip(rows) {
        if buffer.size == 0 {
            instance.left_out += 1;
            continue;
        }
        let id = if words { number } else { name.parse().unwrap_or(number) };
        instance.names.extend(words.then(|| name.to_owned()));
        instance.tags.extend(tagged.then(|| tag.to_owned()));
        if buffer.death <= buffer.birth {
            let Buffer { birth, death, .. } = buffer;
            return Err(bad(
                at,
                format!("buffer {name} lives from {birth} to {death}: the end must be later"),
            ));
        }
        instance.buffers.push(Buffer { id, ..buffer });
    }
    check_names(&instance.names)?;
    Ok(instance)
}

/// Words that are given twice would hide behind rows' numbers.
fn check_names(names: &[String]) -> Result<()> {
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::new(
            Status::InvalidArgument,
            format!("id {:?} is given to two buffers", shortened(pair[0])),
        )),
        None => Ok(()),
    }
}

/// The columns, without which there is no instance: each once.
fn header(line: &str) -> std::result::Result<Vec<Column>, String> {
    let mut columns = Vec::new();
    let line = line.trim_start_matches('\u{feff}');
    for word in line.split(',') {
        let word = word.trim().trim_matches('"').to_ascii_lowercase();
        let known = COLUMNS.iter().find(|(name, _)| *name == word);
        let Some((_, column)) = known else {
            return Err(format!(
                "a header is expected, such as id,lower,upper,size; {:?} is no column",
                shortened(&word)
            ));
        };
        if columns.contains(column) {
            return Err(format!("{word} is a column that is there already"));
        }
        columns.push(*column);
    }
    for (name, column) in [
        ("id", Column::Id),
        ("lower", Column::Birth),
        ("upper", Column::Death),
        ("size", Column::Size),
    ] {
        if !columns.contains(&column) {
            return Err(format!("the header has no column {name}"));
        }
    }
    Ok(columns)
}

fn row<'a>(columns: &[Column], line: &'a str) -> std::result::Result<Row<'a>, String> {
    let (mut name, mut tag) = ("", "");
    let mut buffer = Buffer::new(0, 0, 0, 0);
    let fields = line.split(',').count();
    if fields != columns.len() {
        return Err(format!("{fields} fields; {} are expected", columns.len()));
    }
    for (column, text) in columns.iter().zip(line.split(',')) {
        let text = text.trim();
        match column {
            Column::Id if text.is_empty() => return Err("an id is expected".to_owned()),
            Column::Id => name = text,
            Column::Birth => buffer.birth = number(text, "a time")?,
            Column::Death => buffer.death = number(text, "a time")?,
            Column::Size => buffer.size = number(text, "a size in bytes")?,
            Column::Alignment => buffer.alignment = number(text, "an alignment")?,
            Column::Fixed if text.is_empty() => buffer.fixed = None,
            Column::Fixed => buffer.fixed = Some(number(text, "an offset, or nothing,")?),
            Column::Tag => tag = text,
        }
    }
    Ok((name, tag, buffer))
}

fn number(text: &str, what: &str) -> std::result::Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(value) if digits => Ok(value),
        _ => Err(format!("{what} is expected, a number below 2^64; not {:?}", shortened(text))),
    }
}

/// At most 60 characters of a text.
fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_several_names_and_any_order() {
        let text = "Size, begin,end ,id,offset,align\r\n64,0,2,7,,16\r\n\n32,1,3,8,64,32\n";
        let read = read(text).expect("sound");
        let first = Buffer { alignment: 16, ..Buffer::new(7, 0, 2, 64) };
        let second = Buffer { alignment: 32, fixed: Some(64), ..Buffer::new(8, 1, 3, 32) };
        assert_eq!(read.buffers, [first, second]);
        assert!(read.names.is_empty());
    }

    #[test]
    fn words_and_rows_of_size_0() {
        let read = read("id,lower,upper,size\nb1,0,3,4\nz,3,3,0\nb2,3,9,4\n").expect("sound");
        assert_eq!(read.names, ["b1", "b2"]);
        assert_eq!(read.left_out, 1);
        assert_eq!(read.buffers, [Buffer::new(0, 0, 3, 4), Buffer::new(2, 3, 9, 4)]);
    }

    #[test]
    fn tags_go_with_their_buffers() {
        let read =
            read("tag,id,lower,upper,size\nw,0,0,3,4\nz,1,3,3,0\n,2,3,9,4\n").expect("sound");
        assert_eq!(read.tags, ["w", ""]);
        assert_eq!(read.buffers, [Buffer::new(0, 0, 3, 4), Buffer::new(2, 3, 9, 4)]);
        assert!(super::read("id,lower,upper,size\n0,0,3,4\n").expect("sound").tags.is_empty());
    }

    #[test]
    fn errors_name_the_line() {
        let head = "id,lower,upper,size\n";
        for (text, part) in [
            (String::new(), "line 1: an empty file"),
            ("0,1,2,3\n".to_owned(), "line 1: a header is expected"),
            ("id,lower,upper\n".to_owned(), "no column size"),
            ("id,lower,upper,size,end\n".to_owned(), "there already"),
            (format!("{head}0,1,2\n"), "line 2: 3 fields; 4 are expected"),
            (format!("{head}0,0,2,4\n1,0,2,x\n"), "line 3: a size in bytes is expected"),
            (format!("{head}0,0,2,99999999999999999999\n"), "below 2^64"),
            (format!("{head}0,-1,2,4\n"), "line 2: a time is expected"),
            (format!("{head}0,5,5,4\n"), "line 2: buffer 0 lives from 5 to 5"),
            (format!("{head}a,0,5,4\na,1,2,4\n"), "id \"a\" is given to two"),
        ] {
            let error = read(&text).expect_err(part);
            assert!(error.message().contains(part), "{error} does not say {part:?}");
        }
    }
}
