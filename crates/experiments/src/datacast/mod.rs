//! Datacast: trees (section 4, appendix A) and the pull transport (sections 5 and 7, appendix B).

pub mod bed;
pub mod compare;
pub mod sharing;
pub mod transport;
pub mod trees;

use crate::report::{Item, ItemError, Load, Options, Outcome};

type Run = fn(&Options) -> Result<Outcome, ItemError>;

const fn item(name: &'static str, title: &'static str, load: Load, run: Run) -> Item {
    Item { paper: "datacast", name, title, load, run }
}

/// The items of this paper.
pub const ITEMS: &[Item] = &[
    item("tree-time", "Section 4.3: time to plan the Steiner trees of a group", Load::Alone, |options| {
        Ok(trees::speed(if options.quick { 10 } else { 100 }, options.seed).into())
    }),
    item("tree-quality", "Appendix A: number, size and depth of Steiner trees", Load::Shared, |options| {
        Ok(trees::quality(if options.quick { 10 } else { 100 }, options.seed).into())
    }),
    item("fig-9", "Time to plan trees by size of the group and failed links", Load::Alone, |options| {
        Ok(trees::figure_9(options))
    }),
    item("fig-10", "Number, size and branching of trees by size of the group", Load::Shared, |options| {
        Ok(trees::figure_10(options))
    }),
    item(
        "table-1",
        "Rates and duplicates of both trees by size of the content store",
        Load::Shared,
        transport::table_1,
    ),
    item("table-2", "B.1: δ and T with a slow receiver", Load::Shared, transport::table_2),
    item("fig-11", "B.1: size of the content store with a slow receiver", Load::Shared, transport::figure_11),
    item("fig-12", "B.1: loss with a slow receiver", Load::Shared, transport::figure_12),
    item("b-2", "B.2: one and two trees, and the simulator's speed", Load::Alone, transport::two_trees),
    item("fig-6", "Section 7: TCP comes and goes, and a link fails", Load::Shared, sharing::figure_6),
    item("fig-13", "B.3: sharing a link with TCP", Load::Shared, sharing::figure_13),
    item("fig-14", "B.4: round trips with and without a slow receiver", Load::Shared, transport::figure_14),
    item(
        "comparison",
        "Section 7: Datacast, BitTorrent and content-centric networking",
        Load::Shared,
        compare::comparison,
    ),
];
