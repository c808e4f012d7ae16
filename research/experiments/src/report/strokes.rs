//! Selection of the parts of lines that are drawn where several lie on each other: each has dashes in turn,
//! so that all are seen.

/// A point in pixels of the plot.
pub(super) type Pixel = (f64, f64);

/// Length of a dash where lines share their way.
const DASH_PX: f64 = 9.0;
/// Lines that share less of their way cross.
const SHARED_PX: usize = 40;
/// Distance up to which lines are one to the eye.
const NEAR_PX: i64 = 1;

/// Lines that pass through each pixel, a bit a line: separately those that are flat there, and those that are
/// steep. Lines that only cross do not share a way.
struct Passed {
    width: i64,
    height: i64,
    lines: Vec<[u32; 2]>,
}

impl Passed {
    fn new(lines: &[Vec<Pixel>], (width, height): (u32, u32)) -> Self {
        let (width, height) = (i64::from(width) + 1, i64::from(height) + 1);
        let mut passed = Passed { width, height, lines: vec![[0; 2]; (width * height) as usize] };
        for (at, line) in lines.iter().enumerate().take(32) {
            for (from, to) in line.windows(2).map(|pair| (pair[0], pair[1])) {
                for place in steps(from, to) {
                    if let Some(index) = passed.index(place, (0, 0)) {
                        passed.lines[index][usize::from(is_flat(from, to))] |= 1 << at;
                    }
                }
            }
        }
        passed
    }

    fn index(&self, (x, y): Pixel, (right, down): (i64, i64)) -> Option<usize> {
        let (x, y) = (x.round() as i64 + right, y.round() as i64 + down);
        let inside = (0..self.width).contains(&x) && (0..self.height).contains(&y);
        inside.then(|| (y * self.width + x) as usize)
    }

    /// The lines that are here, as far as the eye can tell.
    fn near(&self, place: Pixel, flat: bool) -> u32 {
        let around = -NEAR_PX..=NEAR_PX;
        let places = around.clone().flat_map(|right| around.clone().map(move |down| (right, down)));
        places
            .filter_map(|by| self.index(place, by))
            .fold(0, |lines, index| lines | self.lines[index][usize::from(flat)])
    }

    /// The lines that line `at` shares its way with here, and itself.
    fn sharing(&self, at: usize, place: Pixel, flat: bool) -> u32 {
        if at < 32 { self.near(place, flat) | (1 << at) } else { 0 }
    }
}

/// Returns true if it is the turn of line `at`, of those that share the way here.
fn is_turn(at: usize, sharing: u32, place: Pixel, flat: bool) -> bool {
    if sharing.count_ones() < 2 {
        return true;
    }
    let rank = (sharing & ((1 << at) - 1)).count_ones();
    // The same for all that share the way, wherever they come from.
    let along = if flat { place.0 } else { place.1 };
    (along / DASH_PX).floor() as i64 % i64::from(sharing.count_ones()) == i64::from(rank)
}

fn is_flat(from: Pixel, to: Pixel) -> bool {
    (to.0 - from.0).abs() >= (to.1 - from.1).abs()
}

/// Places from one point to the other, a pixel apart at most.
fn steps(from: Pixel, to: Pixel) -> impl Iterator<Item = Pixel> {
    let (right, down) = (to.0 - from.0, to.1 - from.1);
    let count = right.abs().max(down.abs()).ceil().clamp(1.0, 1e5);
    (0..=count as u32).map(move |step| {
        let part = f64::from(step) / count;
        (from.0 + part * right, from.1 + part * down)
    })
}

/// For each line the parts of it that are drawn, on a plot of so many pixels.
pub(super) fn in_turn(lines: &[Vec<Pixel>], size: (u32, u32)) -> Vec<Vec<Vec<Pixel>>> {
    let passed = Passed::new(lines, size);
    lines.iter().enumerate().map(|(at, line)| parts(&passed, at, line)).collect()
}

fn parts(passed: &Passed, at: usize, line: &[Pixel]) -> Vec<Vec<Pixel>> {
    let segments = || line.windows(2).map(|pair| (pair[0], pair[1], is_flat(pair[0], pair[1])));
    let mut sharing: Vec<u32> = segments()
        .flat_map(|(from, to, flat)| steps(from, to).map(move |place| passed.sharing(at, place, flat)))
        .collect();
    // Lines that meet for a moment only cross.
    for shared in sharing.chunk_by_mut(|one, next| (one.count_ones() < 2) == (next.count_ones() < 2)) {
        if shared.len() < SHARED_PX {
            shared.fill(0);
        }
    }
    let mut sharing = sharing.into_iter();
    let (mut parts, mut part): (Vec<Vec<Pixel>>, Vec<Pixel>) = (Vec::new(), Vec::new());
    for (from, to, flat) in segments() {
        let mut last = from;
        for (place, sharing) in steps(from, to).zip(&mut sharing) {
            if is_turn(at, sharing, place, flat) {
                if part.is_empty() {
                    part.push(place);
                }
                last = place;
            } else if !part.is_empty() {
                part.push(last);
                parts.push(std::mem::take(&mut part));
            }
        }
        if !part.is_empty() {
            part.push(to);
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (u32, u32) = (700, 360);

    fn length(parts: &[Vec<Pixel>]) -> f64 {
        let of = |part: &Vec<Pixel>| -> f64 {
            part.windows(2).map(|pair| (pair[1].0 - pair[0].0).hypot(pair[1].1 - pair[0].1)).sum()
        };
        parts.iter().map(of).sum()
    }

    #[test]
    fn a_line_alone_is_drawn_whole_also_where_others_cross_it() {
        let lines = [
            vec![(0.0, 10.0), (300.0, 40.0), (300.0, 200.0)],
            vec![(0.0, 100.0), (700.0, 100.0)],
            vec![(0.0, 30.0), (300.0, 10.0)],
        ];
        assert_eq!(in_turn(&lines, SIZE), lines.map(|line| vec![line]));
    }

    #[test]
    fn lines_on_each_other_share_the_way() {
        let line = vec![(0.0, 10.0), (600.0, 100.0)];
        let drawn = in_turn(&[line.clone(), line.clone(), line], SIZE);
        for parts in &drawn {
            let part = length(parts) / 606.7;
            assert!((0.25..0.36).contains(&part), "{part}");
        }
        // No dash of one is under a dash of another.
        let begins = |at: usize| drawn[at].iter().map(|part| part[0].0 as i64).collect::<Vec<_>>();
        assert!(begins(0).iter().all(|x| !begins(1).contains(x) && !begins(2).contains(x)));
    }

    #[test]
    fn lines_part_where_they_differ_and_meet_from_other_points() {
        let long = vec![(0.0, 50.0), (600.0, 50.0)];
        let bent = vec![(300.0, 200.0), (300.0, 50.0), (600.0, 50.0)];
        let drawn = in_turn(&[long, bent], SIZE);
        assert_eq!(drawn[0][0][0], (0.0, 50.0));
        assert!(drawn[0][0][1].0 >= 297.0, "the first half is its own: {:?}", drawn[0][0]);
        let [long, bent] = [length(&drawn[0]), length(&drawn[1])];
        assert!((420.0..470.0).contains(&long) && (270.0..320.0).contains(&bent), "{long} {bent}");
    }

    #[test]
    fn lines_outside_and_of_one_point_draw_nothing_wrong() {
        let lines = [vec![(5.0, 5.0)], vec![], vec![(-50.0, -9.0), (800.0, 500.0)]];
        let drawn = in_turn(&lines, SIZE);
        assert!(drawn[0].is_empty() && drawn[1].is_empty());
        assert_eq!(drawn[2], [lines[2].clone()]);
    }
}
