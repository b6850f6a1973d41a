//! Chapter 3, `book/src/ch03-split-batch.md`: a batch that does not divide evenly.
//!
//! Each law of a split in turn, and then stage 3's split. The message names the first law that is broken.

use crate::prelude::*;

/// Images, labels and the number of shards; the shards.
pub type Answer = fn(&Tensor, &Tensor, usize) -> Result<Shards>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] =
    laws![shards_hold_every_sample_once_and_differ_by_at_most_one, what_cannot_be_cut_is_refused];

type Shards = Vec<(Tensor, Tensor)>;

/// Images of six pixels and their labels. All pixels and the label of sample i are i, so a shard shows its samples.
fn batch(images: usize, labels: usize) -> Result<(Tensor, Tensor)> {
    let numbers = |count| Tensor::arange(0u32, count as u32, &Device::Cpu);
    let pixels = numbers(images)?.to_dtype(DType::F64)?.reshape((images, 1, 1))?;
    Ok((pixels.broadcast_as((images, 2, 3))?.contiguous()?, numbers(labels)?))
}

/// The samples in a shard's images or labels, by the first number of each sample.
fn samples(tensor: &Tensor) -> Result<Vec<u32>> {
    let numbers = tensor.to_dtype(DType::U32)?.flatten_all()?.to_vec1::<u32>()?;
    let size = tensor.dims().iter().skip(1).product();
    Ok(numbers.chunks(size).map(|sample| sample[0]).collect())
}

struct Cut {
    samples: usize,
    shards: usize,
    expected: Vec<Vec<u32>>,
}

impl Cut {
    fn new(samples: usize, shards: usize) -> Result<Self> {
        let (images, labels) = batch(samples, samples)?;
        let parts = split_batch::split_batch(&images, &labels, shards)?;
        let labels = parts.iter().map(|(_, labels)| self::samples(labels));
        Ok(Self { samples, shards, expected: labels.collect::<Result<_>>()? })
    }

    fn fail(&self, what: &str, got: &str, law: &str) -> ! {
        let what = format!("{} samples in {} shards: {what}", self.samples, self.shards);
        fail(&what, &in_groups(&self.expected), got, law)
    }

    fn check(&self, answer: Answer) -> Result<()> {
        let (images, labels) = batch(self.samples, self.samples)?;
        given(format!("{} samples in {} shards", self.samples, self.shards));
        let parts = match answer(&images, &labels, self.shards) {
            Ok(parts) => parts,
            Err(error) => self.fail("an error", &error.to_string(), "every batch can be cut"),
        };
        self.images_have_their_labels(&parts)?;
        let found = parts.iter().map(|(images, _)| samples(images)).collect::<Result<Vec<_>>>()?;
        if found.len() != self.shards {
            let what = format!("got {} of them", found.len());
            let law = "there is a shard for every device, be it an empty one";
            self.fail(&what, &in_groups(&found), law);
        }
        self.every_sample_once(&found);
        self.sizes_differ_by_at_most_one(&found);
        if found != self.expected {
            let law = "shards are runs of samples in order, larger ones first: \
                       then every rank knows whose is what";
            self.fail("the order is another", &in_groups(&found), law);
        }
        self.only_the_number_of_samples_changes(&parts);
        Ok(())
    }

    fn images_have_their_labels(&self, parts: &Shards) -> Result<()> {
        let law = "image and label of a sample stay together";
        for (shard, (images, labels)) in parts.iter().enumerate() {
            let (images, labels) = (samples(images)?, samples(labels)?);
            let got = format!(
                "shard {shard}: images {}, labels {}",
                in_a_row(&images),
                in_a_row(&labels)
            );
            if images.len() != labels.len() {
                let what = format!(
                    "shard {shard} has {} images and {} labels",
                    images.len(),
                    labels.len()
                );
                self.fail(&what, &got, law);
            }
            if let Some((image, label)) = images.iter().zip(&labels).find(|(i, l)| i != l) {
                let what = format!("the image of sample {image} has the label of sample {label}");
                self.fail(&what, &got, law);
            }
        }
        Ok(())
    }

    fn every_sample_once(&self, found: &[Vec<u32>]) {
        for sample in 0..self.samples as u32 {
            let places: Vec<usize> = (0..found.len())
                .flat_map(|shard| found[shard].iter().filter(|&&s| s == sample).map(move |_| shard))
                .collect();
            let what = match places[..] {
                [_] => continue,
                [] => format!("sample {sample} is in no shard"),
                [first, second, ..] => format!("sample {sample} is in shards {first} and {second}"),
            };
            self.fail(&what, &in_groups(found), "every sample is in exactly one shard");
        }
    }

    fn sizes_differ_by_at_most_one(&self, found: &[Vec<u32>]) {
        let sizes = || found.iter().map(Vec::len);
        let (largest, smallest) = (sizes().max().unwrap_or(0), sizes().min().unwrap_or(0));
        if largest > smallest + 1 {
            let what = format!("the largest has {largest} samples, the smallest {smallest}");
            let law = "sizes differ by at most one, for all devices wait for the slowest";
            self.fail(&what, &in_groups(found), law);
        }
    }

    fn only_the_number_of_samples_changes(&self, parts: &Shards) {
        let kind = |tensor: &Tensor| format!("{:?} {:?}", tensor.dtype(), tensor.dims());
        for (shard, (images, labels)) in parts.iter().enumerate() {
            let size = self.expected[shard].len();
            let expected = format!("images F64 [{size}, 2, 3], labels U32 [{size}]");
            let got = format!("images {}, labels {}", kind(images), kind(labels));
            if got != expected {
                let what = format!("shard {shard} of {} samples is no batch", self.samples);
                fail(&what, &expected, &got, "a shard is a batch with fewer samples");
            }
        }
    }
}

fn shards_hold_every_sample_once_and_differ_by_at_most_one(answer: Answer) -> Result<()> {
    within("cutting", move || {
        for (samples, shards) in [(12, 4), (10, 4), (7, 3), (3, 3), (1, 1), (3, 5), (0, 2), (50, 7)]
        {
            Cut::new(samples, shards)?.check(answer)?;
        }
        Ok(())
    })
}

fn what_cannot_be_cut_is_refused(answer: Answer) {
    for (images, labels, shards) in [(10, 10, 0), (10, 9, 4), (9, 10, 4)] {
        let what = if images == labels {
            format!("{images} samples in {shards} shards")
        } else {
            format!("{images} images and {labels} labels in {shards} shards")
        };
        let cut = move || {
            let (images, labels) = batch(images, labels)?;
            answer(&images, &labels, shards)
        };
        refusal::check(&what, cut, |parts| format!("{} shards", parts.len()));
    }
}
