//! The entries of a recording, in the places where they are compared with another's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Entry;

/// A step, before it or after it, and a rank.
pub(super) type Place = (usize, bool, usize);

/// What two recordings have in one place, of which one may have nothing.
pub(super) type Pair<'a> = (Option<&'a Entry>, Option<&'a Entry>);

/// A recording that has at least one entry.
pub(super) struct Steps<'a> {
    /// Parameters, buffers, losses and gradients, in order.
    of_ranks: BTreeMap<Place, Vec<&'a Entry>>,
    /// All ranks' images of a step: which rank has which shard depends on how many ranks there are.
    images: BTreeMap<usize, Vec<&'a Entry>>,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) last_rank: usize,
}

impl<'a> Steps<'a> {
    /// The entries by place; `None` of none.
    pub(super) fn new(entries: &'a [Entry]) -> Option<Self> {
        let mut of_ranks = BTreeMap::<Place, Vec<&Entry>>::new();
        let mut images = BTreeMap::<usize, Vec<&Entry>>::new();
        for entry in entries {
            match entry.kind.as_str() {
                "images" => images.entry(entry.step).or_default().push(entry),
                kind => {
                    let came_out = matches!(kind, "loss" | "gradient");
                    let place = (entry.step, came_out, entry.rank);
                    of_ranks.entry(place).or_default().push(entry);
                }
            }
        }
        images.values_mut().for_each(|shards| shards.sort_by_key(|shard| shard.rank));
        let steps = || entries.iter().map(|entry| entry.step);
        let (first, last) = (steps().min()?, steps().max()?);
        let last_rank = entries.iter().map(|entry| entry.rank).max()?;
        Some(Self { of_ranks, images, first, last, last_rank })
    }

    /// All steps, and the one that was not made any more.
    pub(super) fn numbers(&self) -> BTreeSet<usize> {
        self.of_ranks.keys().map(|(step, ..)| step).chain(self.images.keys()).copied().collect()
    }

    /// Whether the run was over before this step: weights are all that there is of it.
    pub(super) fn is_over(&self, step: usize) -> bool {
        step == self.last
            && !self.images.contains_key(&step)
            && self.places(step).all(|(_, came_out, _)| !came_out)
    }

    pub(super) fn places(&self, step: usize) -> impl Iterator<Item = Place> {
        let all = (step, false, 0)..=(step, true, usize::MAX);
        self.of_ranks.range(all).map(|(place, _)| *place)
    }

    pub(super) fn at(&self, place: Place) -> &[&'a Entry] {
        self.of_ranks.get(&place).map_or(&[], Vec::as_slice)
    }

    /// Whether something was written behind a place. Ranks are written one after the other.
    pub(super) fn is_written_beyond(&self, place: Place) -> bool {
        let written = |(step, came_out, rank): Place| (step, rank, came_out);
        self.of_ranks.keys().any(|other| written(*other) > written(place))
    }

    /// Into how many shards batches were cut, as far as they were recorded.
    pub(super) fn shards(&self) -> usize {
        let shards = self.images.values().flatten().map(|shard| shard.name.as_str());
        shards.collect::<BTreeSet<_>>().len()
    }

    /// The images of a step, shard by shard, whichever rank has them: in both recordings, then in the other alone.
    pub(super) fn pairs_of_images(&self, other: &Self, step: usize) -> Vec<Pair<'a>> {
        let shards = |of: &Self| of.images.get(&step).cloned().unwrap_or_default();
        let (first, second) = (shards(self), shards(other));
        let of_first = by_shard(&first);
        let of_second = by_shard(&second);
        let pairs = first.iter().map(|shard| (Some(*shard), found(&of_second, shard)));
        let alone = second.iter().filter(|shard| found(&of_first, shard).is_none());
        pairs.chain(alone.map(|shard| (None, Some(*shard)))).collect()
    }
}

/// Images by the name of their shard, in the order of their ranks.
type Shards<'a> = HashMap<&'a str, Vec<&'a Entry>>;

fn by_shard<'a>(images: &[&'a Entry]) -> Shards<'a> {
    let mut shards = Shards::new();
    for shard in images {
        shards.entry(&shard.name).or_default().push(shard);
    }
    shards
}

/// The same shard in another recording. Where several ranks have it, which is a mistake, the same rank's.
fn found<'a>(shards: &Shards<'a>, wanted: &Entry) -> Option<&'a Entry> {
    let all = shards.get(wanted.name.as_str())?;
    all.iter().find(|shard| shard.rank == wanted.rank).or(all.first()).copied()
}
