//! Rules about the includes of pages: files, anchors, and the listings of a chapter.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::page::{Include, Page, line_of};
use super::{Book, Found, Wrong, outputs, stem};

// The beginning or the end of an anchor, as mdBook finds it, in its own comment.
pattern!(ANCHOR, r"(?m)^\s*(?://|#|<!--) ANCHOR(_END)?: ([\w-]+)(?: -->)?$");

/// How far above a listing its path may be, in lines.
const NEAR: usize = 5;

/// The chapters, each with its stage and the files of the stage that it prints. Several pages may share a file.
const CHAPTERS: &str = "\
ch01-single-gpu 01-single-gpu src/lenet src/init src/layers src/sgd src/gradient_check src/train
ch02-all-reduce 02-params-and-allreduce src/params src/../examples/channels src/communicator/all_reduce/naive
ch02-all-reduce 02-params-and-allreduce src/communicator/all_reduce/one_shot src/communicator/all_reduce/tree
ch02-all-reduce 02-params-and-allreduce src/communicator/all_reduce/ring
ch03-split-batch 03-split-batch src/split src/loader src/sampler
ch04-data-parallel 04-scratch-data-parallel src/train_batch src/train src/replicas src/evaluate
ch04c-same-bits 04-scratch-data-parallel src/reproducible src/fixed_tree
ch05-concise-wrapper 05-concise-wrapper src/../examples/own_model src/data_parallel src/ddp/bucket src/ddp/reducer
ch05-concise-wrapper 05-concise-wrapper src/ddp/worker
ch05d-your-model 05-concise-wrapper src/network src/model src/optimizer src/resnet
ch05b-batch-norm 05-concise-wrapper src/batch_norm
ch06-model-parallel 06-model-parallel src/instructions src/orders src/partition src/execute/step src/execute/unit
ch06-model-parallel 06-model-parallel src/pytorch
ch06a-better-lists 06-model-parallel src/orders src/partition src/check src/simulate
ch06b-tensor-parallel 06-model-parallel src/gpt src/mesh src/tensor_parallel
ch07-sharded-state 06-model-parallel src/check
ch07-sharded-state 07-sharded-state src/strategies src/flat src/unit
";

/// The percentage of such a file's code that its chapter prints, at least.
const AT_LEAST: usize = 80;

/// The listings that answer an exercise: page, exercise, listings. Nobody should see the answer before the exercise.
const ANSWERS: &str = "\
ch01-single-gpu ch01_pool_gradient layers.rs:pool_backward
ch01-single-gpu ch01_cross_entropy layers.rs:cross_entropy
ch02-all-reduce ch02_ring ring.rs:ring
ch02b-ranks ch02_ring collectives.rs:reduce_scatter collectives.rs:all_gather
ch02b-ranks ch02_hierarchical two_levels.rs:two_levels
ch03-split-batch ch03_sampler sampler.rs:epoch
ch04-data-parallel ch04_train_batch train_batch.rs:train_batch
ch04-data-parallel ch04_accuracy evaluate.rs:evaluate
ch05-concise-wrapper ch05_buckets bucket.rs:buckets
ch05-concise-wrapper ch05_overlap reducer.rs:backward
ch05b-batch-norm ch05_sync_batch_norm batch_norm.rs:merged
ch05c-processes ch05_resume resume.rs:restore resume.rs:begin
ch06-model-parallel ch06_two_stages two_layers.rs:first two_layers.rs:second
ch06-model-parallel ch06_1f1b orders.rs:one_f_one_b orders.rs:generate
ch06a-better-lists ch06_balance partition.rs:cut
ch06b-tensor-parallel ch06_attention gpt.rs:layers
ch07-sharded-state ch07_zero1 one_unit.rs:chunks
ch07-sharded-state ch07_fsdp strategies.rs:gathered strategies.rs:summed
ch07-sharded-state ch07_prefetch strategies.rs:prefetched
ch08-more-devices ch08_predict all_reduce.rs:way
";

/// Includes without a file, an anchor, or lines of an output.
pub(super) fn includes(book: &Book, page: &Page) -> Wrong {
    page.includes.iter().filter_map(|it| Some((it.line, missing(book, it)?))).collect()
}

fn missing(book: &Book, include: &Include) -> Option<String> {
    let Include { kind, path, file, anchor, .. } = include;
    if kind != "include" {
        return Some(format!("{{{{#{kind} …}}}}: write #include"));
    }
    let Some(text) = book.text(file) else { return Some(format!("there is no file {path}")) };
    let anchor = anchor.as_ref()?;
    if let Some((first, last)) = include.lines() {
        let lines = text.lines().count();
        if !file.starts_with(outputs::FOLDER) {
            return Some(format!("{path}:{anchor}: lines move, so name an anchor"));
        }
        // mdBook shows nothing in place of lines that are not there.
        return (!(1..=last).contains(&first) || last > lines)
            .then(|| format!("{path}:{anchor}: the file has lines 1 to {lines}"));
    }
    let [begins, ends] = [false, true].map(|end| {
        let all = ANCHOR.captures_iter(text).filter(|found| found.get(1).is_some() == end);
        all.filter_map(|found| Some(found.get(2)?.as_str())).collect::<Vec<_>>()
    });
    if !begins.contains(&&**anchor) {
        return Some(format!("{} has no anchor {anchor}", file.display()));
    }
    (!ends.contains(&&**anchor))
        .then(|| format!("{}: \"ANCHOR_END: {anchor}\" is missing", file.display()))
}

/// Anchors in sources that no page includes, or that a file has twice.
pub(super) fn anchors(book: &Book, found: &mut Found) {
    let used = book.pages().flat_map(|page| &page.includes);
    let used = used.filter_map(|it| Some((it.file.as_path(), it.anchor.as_deref()?)));
    let used: BTreeSet<(&Path, &str)> = used.collect();
    for (file, text) in book.files("", "rs").chain(book.files("", "cu")) {
        let mut seen = BTreeSet::new();
        for anchor in ANCHOR.captures_iter(text).filter(|anchor| anchor.get(1).is_none()) {
            let Some(name) = anchor.get(2) else { continue };
            let (line, name) = (line_of(text, name.start()), name.as_str());
            if !seen.insert(name) {
                found.at(file, line, format_args!("anchor {name} is in this file twice"));
            } else if !used.contains(&(file, name)) {
                let what = format_args!("no page includes anchor {name}: remove it, or include it");
                found.at(file, line, what);
            }
        }
    }
}

/// A chapter prints nearly all code of its stage: a page has each line once, and below the path of its file.
pub(super) fn listings(book: &Book, found: &mut Found) {
    let mut all = BTreeMap::new();
    for page in book.pages().filter(|page| page.name.to_string_lossy().starts_with("ch")) {
        let text: Vec<&str> = page.text.lines().collect();
        let mut printed: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for include in page.includes.iter().filter(|it| it.path.ends_with(".rs")) {
            let path = include.file.display().to_string();
            let above = &text[include.line.saturating_sub(NEAR + 1)..include.line - 1];
            if !above.iter().any(|line| line.contains(&path)) {
                let what = format_args!("write the path {path} above this listing");
                found.on(page, include.line, what);
            }
            let printed = printed.entry(path).or_default();
            let lines = lines_of(book.text(&include.file).unwrap_or_default(), include);
            if let Some(line) = lines.filter(|line| !printed.insert(*line)).min() {
                let what = format_args!("line {line} of this file is printed twice");
                found.on(page, include.line, what);
            }
        }
        all.insert(stem(&page.name), printed);
    }
    let mut pages_of: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for row in CHAPTERS.lines() {
        let words: Vec<&str> = row.split(' ').collect();
        for file in &words[2..] {
            let file = format!("{}/{file}.rs", words[1]).replace("src/../", "");
            pages_of.entry(file).or_default().push(words[0]);
        }
    }
    for (file, pages) in pages_of {
        let code = code_lines(book.text(&file).unwrap_or_default());
        let printed: Vec<_> = pages.iter().filter_map(|page| all.get(*page)?.get(&file)).collect();
        let printed = code.iter().filter(|line| printed.iter().any(|it| it.contains(line))).count();
        let share = printed * 100 / code.len().max(1);
        if share < AT_LEAST {
            let pages = pages.join(" and ");
            let what = format_args!("{pages}: printed {share} % of this file, not {AT_LEAST} %");
            found.at(file, 1, what);
        }
    }
}

/// The lines of a source that an include shows.
fn lines_of<'a>(source: &'a str, include: &'a Include) -> impl Iterator<Item = usize> + 'a {
    let mark = |mark: &str| format!("// {mark}: {}", include.anchor.as_deref().unwrap_or_default());
    let (begin, end, mut inside) = (mark("ANCHOR"), mark("ANCHOR_END"), include.anchor.is_none());
    (1..).zip(source.lines().map(str::trim)).filter_map(move |(line, text)| {
        inside = (inside || text == begin) && text != end;
        (inside && text != begin).then_some(line)
    })
}

/// The lines with code, without comments and tests.
fn code_lines(source: &str) -> BTreeSet<usize> {
    let lines = (1..).zip(source.lines().take_while(|line| *line != "#[cfg(test)]"));
    let code = lines.filter(|(_, text)| !text.trim().is_empty() && !text.trim().starts_with("//"));
    code.map(|(line, _)| line).collect()
}

/// Listings of answers that are not folded, or that their page does not print.
pub(super) fn folded(book: &Book, found: &mut Found) {
    for row in ANSWERS.lines() {
        let words: Vec<&str> = row.split(' ').collect();
        let (file, exercise) = (format!("book/src/{}.md", words[0]), words[1]);
        let fold = format!("<summary>After the exercise <code>{exercise}</code>");
        let lines: Vec<&str> = book.text(&file).unwrap_or_default().lines().collect();
        for listing in &words[2..] {
            let shown = lines.iter().position(|line| line.ends_with(&format!("{listing}}}}}")));
            let above = &lines[..shown.unwrap_or(0)];
            let ends = |it: &&&str| it.starts_with("<summary>") || **it == "</details>";
            if !above.iter().rfind(ends).is_some_and(|it| it.starts_with(&fold)) {
                let what =
                    format_args!("{listing} shows an answer: fold it in <details> below {fold}");
                found.at(&file, shown.unwrap_or(0) + 1, what);
            }
        }
    }
}
