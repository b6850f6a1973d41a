//! The picture for paper, and for pages without scripts.

use xtask::scaling::PICTURED;

use super::{numbers, of_link, stored};
use crate::*;

#[test]
fn the_picture_tells_what_the_file_tells() {
    let (svg, file) = (in_the_book("figures/scaling.svg").unwrap(), stored());
    // The samples of the legend have two points.
    let curves = |class: &str| -> Vec<&str> {
        let class = format!("<polyline class=\"{class}");
        let of_class = svg.lines().filter(|line| line.starts_with(&class));
        of_class.filter(|line| line.matches(',').count() > 2).collect()
    };
    let ideal = svg.matches("stroke-dasharray=\"5 5\"").count();
    assert_eq!(ideal, PICTURED.len() + 1, "of each panel, and of the legend");
    let mut curves = curves("series-").into_iter();
    for [model, batch, link] in PICTURED {
        let panels = of_link(&file, link);
        let panel =
            panels.iter().find(|panel| panel["model"] == model && panel["batch"] == batch).unwrap();
        assert!(svg.contains(&format!(">{}, ", panel["name"].as_str().unwrap())), "{model}");
        // Up is faster: points of a curve are as high as its numbers are large.
        for series in [2, 0, 1, 3] {
            let curve = curves.next().unwrap();
            assert!(curve.contains(&format!("series-{}\"", series + 1)), "{curve}");
            let points = curve.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
            let height = |point: &str| point.split(',').nth(1).unwrap().parse().unwrap();
            let heights: Vec<f64> = points.split(' ').map(height).collect();
            let numbers = numbers(&panel["with_overlap"][series], "speed_up");
            assert_eq!(heights.len(), numbers.len());
            // A decade is as high everywhere.
            let far = (0..numbers.len())
                .max_by(|&a, &b| numbers[a].ln().abs().total_cmp(&numbers[b].ln().abs()));
            let far = far.unwrap();
            let unit = (heights[0] - heights[far]) / numbers[far].ln();
            for (height, number) in heights.iter().zip(&numbers) {
                assert!(
                    (heights[0] - height - unit * number.ln()).abs() < 1.0,
                    "{model}: {height}, {number}"
                );
            }
        }
    }
    assert!(curves.next().is_none());
}
