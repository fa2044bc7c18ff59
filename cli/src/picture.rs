//! A plan as a picture: time across, offset up, colour by size or tag, the bound as a line.
//!
//! Promises an SVG of less than [`BYTES_MAX`] bytes for any plan: buffers that would be slivers
//! are drawn together, as cells of a grid, coarser until the picture is small enough. Owns no
//! file. Must not show more than the plan has. Cost: a pass over the buffers for each grid tried.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use forebay::plan::Plan;

/// The picture is smaller than this.
pub const BYTES_MAX: usize = 1_000_000;
/// The drawing's size in pixels; around it is room for words.
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 20.0;
const TOP: f64 = 60.0;
/// Smallest sizes first: from pale to dark.
const COLOURS: [&str; 8] =
    ["#dbe9f6", "#b3d3e8", "#7db8da", "#4a98c9", "#f4b56a", "#ec8a3c", "#d45d2a", "#9c3a1e"];

/// The most frequent tags first, the last for all others; told apart in any order.
const TAG_COLOURS: [&str; 8] =
    ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#edc948", "#76b7b2", "#e15759", "#9c9c9c"];
/// Characters of a tag in the key.
const TAG_LENGTH: usize = 20;

/// A rectangle in pixels from the drawing's upper left.
struct Box {
    x: f64,
    y: f64,
    w: f64,
    h: f64,
    colour: usize,
}

/// The picture of `plan`, under a title. `tags`, one for each buffer in the plan's order, give the
/// colours in the place of sizes; buffers that have none there count as untagged.
pub fn svg(plan: &Plan, title: &str, tags: Option<&[String]>) -> String {
    let (of, palette, words) = match tags {
        None => (sizes(plan), COLOURS, "the darker, the larger".to_owned()),
        Some(tags) => {
            let (of, words) = tagged(plan, tags);
            (of, TAG_COLOURS, words)
        }
    };
    let boxes = boxes(plan, &of);
    let mut cell = 1.0;
    loop {
        let body = body(&boxes, cell, &palette);
        let text = whole(plan, title, &body, &words);
        // A grid of one cell is a few hundred bytes: this ends.
        if text.len() < BYTES_MAX || cell > HEIGHT {
            return text;
        }
        cell *= 2.0;
    }
}

/// Each buffer's colour by its size: classes of equal ratio between the smallest and the largest.
fn sizes(plan: &Plan) -> Vec<usize> {
    let all = || plan.buffers().iter().map(|b| b.size);
    let (least, most) = (all().min().unwrap_or(1) as f64, all().max().unwrap_or(1) as f64);
    let span = (most / least).ln().max(f64::MIN_POSITIVE);
    let class = |size: u64| {
        let share = (size as f64 / least).ln() / span;
        ((share * COLOURS.len() as f64) as usize).min(COLOURS.len() - 1)
    };
    all().map(class).collect()
}

/// Each buffer's colour by its tag, and the key. Tags with most buffers have a colour of their own.
fn tagged(plan: &Plan, tags: &[String]) -> (Vec<usize>, String) {
    let tag = |i: usize| tags.get(i).map_or("", String::as_str);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    (0..plan.buffers().len()).for_each(|i| *counts.entry(tag(i)).or_default() += 1);
    let mut order: Vec<(&str, usize)> = counts.into_iter().collect();
    order.sort_by_key(|(tag, count)| (std::cmp::Reverse(*count), *tag));
    let others = TAG_COLOURS.len() - 1;
    let colour: BTreeMap<&str, usize> =
        order.iter().zip(0..).map(|((tag, _), at)| (*tag, at.min(others))).collect();
    let mut words = String::from("colours are tags:");
    for ((tag, count), colour) in order.iter().zip(&TAG_COLOURS[..others]) {
        let tag = if tag.is_empty() { "(none)" } else { tag };
        let short: String = tag.chars().take(TAG_LENGTH).collect();
        let tag = escaped(&short);
        let _ = write!(words, " <tspan fill=\"{colour}\">\u{25a0}</tspan> {tag} ({count})");
    }
    if order.len() > others {
        let (grey, more) = (TAG_COLOURS[others], order.len() - others);
        let _ = write!(words, " <tspan fill=\"{grey}\">\u{25a0}</tspan> {more} others");
    }
    ((0..plan.buffers().len()).map(|i| colour[tag(i)]).collect(), words)
}

fn boxes(plan: &Plan, colours: &[usize]) -> Vec<Box> {
    let buffers = plan.buffers();
    let first = buffers.iter().map(|b| b.birth).min().unwrap_or(0);
    let last = buffers.iter().map(|b| b.death).max().unwrap_or(1);
    let across = WIDTH / (last - first).max(1) as f64;
    let up = HEIGHT / plan.height().max(1) as f64;
    let placed = buffers.iter().zip(plan.offsets()).zip(colours);
    placed
        .map(|((b, offset), colour)| Box {
            x: (b.birth - first) as f64 * across,
            y: HEIGHT - (offset + b.size) as f64 * up,
            w: (b.death - b.birth) as f64 * across,
            h: b.size as f64 * up,
            colour: *colour,
        })
        .collect()
}

/// One path for each colour: large boxes as they are, slivers as cells of the grid.
fn body(boxes: &[Box], cell: f64, palette: &[&str; COLOURS.len()]) -> String {
    let mut paths = vec![String::new(); COLOURS.len()];
    let (columns, rows) = ((WIDTH / cell).ceil() as usize, (HEIGHT / cell).ceil() as usize);
    let mut grid = vec![None; columns * rows];
    for b in boxes {
        if b.w >= 2.0 * cell && b.h >= 2.0 * cell {
            rectangle(&mut paths[b.colour], b.x, b.y, b.w, b.h);
            continue;
        }
        let cells = |from: f64, length: f64, end: usize| {
            let first = ((from / cell) as usize).min(end - 1);
            let last = ((from + length) / cell).ceil() as usize;
            first..last.clamp(first + 1, end)
        };
        for row in cells(b.y.max(0.0), b.h, rows) {
            for column in cells(b.x, b.w, columns) {
                let colour: &mut Option<usize> = &mut grid[row * columns + column];
                *colour = Some(colour.map_or(b.colour, |there| there.max(b.colour)));
            }
        }
    }
    let mut merged = vec![String::new(); COLOURS.len()];
    for (row, line) in grid.chunks(columns).enumerate() {
        let mut at = 0;
        for same in line.chunk_by(|a, b| a == b) {
            if let Some(colour) = same[0] {
                let (x, y) = (at as f64 * cell, row as f64 * cell);
                rectangle(&mut merged[colour], x, y, same.len() as f64 * cell, cell);
            }
            at += same.len();
        }
    }
    let mut text = String::new();
    // Slivers first, so that what is drawn as it is stays whole.
    for (paths, stroke) in [(merged, "none"), (paths, "#fff")] {
        for (path, colour) in paths.iter().zip(palette).filter(|(path, _)| !path.is_empty()) {
            let _ = writeln!(
                text,
                "<path fill=\"{colour}\" stroke=\"{stroke}\" stroke-width=\".3\" d=\"{path}\"/>"
            );
        }
    }
    text
}

fn rectangle(path: &mut String, x: f64, y: f64, w: f64, h: f64) {
    // Writing to a string cannot fail.
    let _ = write!(path, "M{} {}h{}v{}h-{}z", short(x), short(y), short(w), short(h), short(w));
}

/// A length with at most one digit after the point.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn whole(plan: &Plan, title: &str, body: &str, key: &str) -> String {
    let share = if plan.height() == 0 { 1.0 } else { plan.bound() as f64 / plan.height() as f64 };
    let line = HEIGHT * (1.0 - share);
    let (width, height) = (WIDTH + 2.0 * LEFT, HEIGHT + TOP + 40.0);
    let right = WIDTH;
    let words = format!(
        "{} buffers, height {} bytes, bound {} (dashed), gap {}",
        plan.buffers().len(),
        plan.height(),
        plan.bound(),
        plan.gap()
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"18\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"46\">{words}</text>\n\
         <g transform=\"translate({LEFT} {TOP})\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#f6f6f6\" stroke=\"#999\"/>\n\
         {body}\
         <path stroke=\"#000\" stroke-dasharray=\"8 4\" d=\"M0 {line:.1}h{right}\"/>\n\
         </g>\n\
         <text x=\"{LEFT}\" y=\"{}\">time; upwards the offset; {key}</text>\n\
         </svg>\n",
        escaped(title),
        HEIGHT + TOP + 24.0
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
