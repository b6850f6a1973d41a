//! Chapter 5, `book/src/ch05-concise-wrapper.md`: gradient buckets by size, last layer first.
//!
//! Each law of buckets in turn, and then stage 5's buckets. The message names the first law that is broken.

use crate::prelude::*;
use concise_wrapper::ddp::bucket::{BucketCaps, buckets};

/// Sizes of gradients in bytes, and the caps; the buckets.
pub type Answer = fn(&[usize], BucketCaps) -> Vec<Vec<usize>>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![gradients_are_gathered_into_buckets];

struct Case {
    sizes: Vec<usize>,
    caps: BucketCaps,
    expected: Vec<Vec<usize>>,
}

impl Case {
    fn new(sizes: &[usize], first: usize, others: usize) -> Self {
        let caps = BucketCaps { first, others };
        Self { sizes: sizes.to_vec(), caps, expected: buckets(sizes, caps) }
    }

    fn described(&self) -> String {
        let BucketCaps { first, others } = self.caps;
        format!("sizes {}, caps {first} and {others}", in_a_row(&self.sizes))
    }

    fn fail(&self, what: &str, found: &[Vec<usize>], law: &str) -> ! {
        let what = format!("{}: {what}", self.described());
        let drawn = |buckets: &[Vec<usize>]| match buckets.len() {
            0 => "no buckets".to_owned(),
            _ => in_groups(buckets),
        };
        fail(&what, &drawn(&self.expected), &drawn(found), law)
    }

    fn check(&self, answer: Answer) {
        given(self.described());
        let found = answer(&self.sizes, self.caps);
        self.no_bucket_is_empty(&found);
        self.every_gradient_once(&found);
        self.last_layer_first(&found);
        self.no_cap_is_exceeded(&found);
        self.none_is_closed_too_early(&found);
        if found != self.expected {
            self.fail("not the buckets of stage 5", &found, "DDP's own buckets are the same");
        }
    }

    fn no_bucket_is_empty(&self, found: &[Vec<usize>]) {
        if let Some(index) = found.iter().position(Vec::is_empty) {
            let law = "a bucket is a message: nothing is sent for no gradient";
            self.fail(&format!("bucket {index} is empty"), found, law);
        }
    }

    fn every_gradient_once(&self, found: &[Vec<usize>]) {
        let mut places = vec![Vec::new(); self.sizes.len()];
        for (bucket, members) in found.iter().enumerate() {
            for &parameter in members {
                match places.get_mut(parameter) {
                    Some(places) => places.push(bucket),
                    None => {
                        let law = "a bucket is a list of indices into the sizes";
                        self.fail(&format!("there is no parameter {parameter}"), found, law)
                    }
                }
            }
        }
        let last_first = || (0..self.sizes.len()).rev();
        if let Some(parameter) = last_first().find(|&parameter| places[parameter].len() > 1) {
            let [one, other] = [places[parameter][0], places[parameter][1]];
            let what = match one == other {
                true => format!("parameter {parameter} is twice in bucket {one}"),
                false => format!("parameter {parameter} is in bucket {one} and in bucket {other}"),
            };
            let law = "a gradient is in one bucket, whole: none is split, none is added up twice";
            self.fail(&what, found, law);
        }
        let lost = |&parameter: &usize| places[parameter].is_empty();
        let lost: Vec<usize> = last_first().filter(lost).collect();
        if !lost.is_empty() {
            let guess = match self.expected.last() == Some(&lost) {
                true => ": the bucket that is open after the last gradient",
                false => "",
            };
            let what = format!("no bucket has parameters {}{guess}", in_a_row(&lost));
            self.fail(&what, found, "every gradient is added up over the ranks");
        }
    }

    fn last_layer_first(&self, found: &[Vec<usize>]) {
        let order = (0..self.sizes.len()).rev();
        let mut places = found.iter().flatten().zip(order);
        if let Some((got, expected)) = places.find(|(got, expected)| *got != expected) {
            let what = format!("parameter {got} comes before parameter {expected}");
            let law = "the last layer's gradient is finished first: this is the order of the buckets, \
                       and the order in each of them";
            self.fail(&what, found, law);
        }
    }

    fn cap(&self, bucket: usize) -> usize {
        if bucket == 0 { self.caps.first } else { self.caps.others }
    }

    fn bytes(&self, bucket: &[usize]) -> usize {
        bucket.iter().map(|&parameter| self.sizes[parameter]).sum()
    }

    fn no_cap_is_exceeded(&self, found: &[Vec<usize>]) {
        for (index, bucket) in found.iter().enumerate() {
            let (bytes, cap) = (self.bytes(bucket), self.cap(index));
            if bucket.len() > 1 && bytes > cap {
                let what = format!("bucket {index} has {bytes} bytes, and a cap of {cap}");
                let law = "a gradient that would exceed the cap opens the next bucket; caps.first is the \
                           cap of the first bucket, caps.others that of every other";
                self.fail(&what, found, law);
            }
        }
    }

    fn none_is_closed_too_early(&self, found: &[Vec<usize>]) {
        for (index, two) in found.windows(2).enumerate() {
            let (bytes, next) = (self.bytes(&two[0]), two[1][0]);
            let (size, cap) = (self.sizes[next], self.cap(index));
            if bytes + size <= cap {
                let what = format!(
                    "bucket {index} is closed with {bytes} bytes of {cap}, but parameter {next} of {size} \
                     fits"
                );
                let law = "few large messages: a bucket is closed when the next gradient does not fit, \
                           and not before";
                self.fail(&what, found, law);
            }
        }
    }
}

fn gradients_are_gathered_into_buckets(answer: Answer) {
    within("filling the buckets", move || {
        // The example; buckets that are filled to the last byte, in a row; all in one; each in its own; a
        // gradient larger than the cap at the end, in the middle, at the beginning; a first cap that is
        // larger than the others.
        Case::new(&[3, 6, 2, 9, 2, 1], 4, 10).check(answer);
        Case::new(&[4, 6, 9, 1, 2, 2], 4, 10).check(answer);
        Case::new(&[1, 2, 1], 100, 200).check(answer);
        Case::new(&[3, 5, 4], 2, 2).check(answer);
        Case::new(&[1, 2, 50], 4, 10).check(answer);
        Case::new(&[2, 3, 60, 4, 1], 20, 10).check(answer);
        Case::new(&[70, 2, 1], 4, 10).check(answer);
        Case::new(&[50, 60, 70], 4, 10).check(answer);
        Case::new(&[5], 4, 10).check(answer);
        Case::new(&[], 4, 10).check(answer);
        // A first gradient above its cap and below the other caps; a first bucket that is closed below its cap.
        Case::new(&[2, 6], 4, 10).check(answer);
        Case::new(&[3, 2, 2, 3], 4, 10).check(answer);
        let sizes: Vec<usize> = (0..40).map(|index| 1 + index * 7 % 23).collect();
        for others in [1, 7, 30, 1000] {
            Case::new(&sizes, 5, others).check(answer);
        }
        // All lists of four small gradients.
        for number in 0..256 {
            let sizes = [0, 2, 4, 6].map(|shift| [1, 2, 3, 5][number >> shift & 3]);
            for (first, others) in [(3, 7), (7, 3), (4, 5)] {
                Case::new(&sizes, first, others).check(answer);
            }
        }
    });
}
