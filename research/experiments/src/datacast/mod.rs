//! Datacast: trees (section 4, appendix A) and the pull transport (sections 5 and 7, appendix B).

pub mod bed;
pub mod compare;
pub mod sharing;
pub mod transport;
pub mod trees;

use crate::Kind;
use crate::report::{Item, ItemError, Load, Options, Outcome};

type Run = fn(&Options) -> Result<Outcome, ItemError>;

/// Place where the paper prints an item's numbers, kind of ours, and reason why they differ.
type About = (&'static str, Kind, &'static str);

const fn item(name: &'static str, title: &'static str, about: About, load: Load, run: Run) -> Item {
    let (place, kind, differs) = about;
    Item { paper: "datacast", name, title, place, kind, differs, load, run }
}

/// The rules in which ours is not the paper's transport.
const RULES: &str = "our transport has other rules: stores forget the oldest packet, and the rate is halved for duplicates that \
                     come after the last halving, not while only retransmissions are sent";

/// The items of this paper.
pub const ITEMS: &[Item] = &[
    item(
        "tree-time",
        "Section 4.3: time to plan the Steiner trees of a group",
        (
            "section 4.3 and appendix A.5",
            Kind::Measured,
            "another processor; broken trees are mended and not built anew",
        ),
        Load::Alone,
        |options| Ok(trees::speed(if options.quick { 10 } else { 100 }, options.seed).into()),
    ),
    item(
        "tree-quality",
        "Appendix A: number, size and depth of Steiner trees",
        (
            "appendix A.6 and A.7",
            Kind::Computed,
            "broken trees are mended and not built anew; groups are drawn",
        ),
        Load::Shared,
        |options| Ok(trees::quality(if options.quick { 10 } else { 100 }, options.seed).into()),
    ),
    item(
        "fig-9",
        "Time to plan trees by size of the group and failed links",
        ("appendix A.5, Fig. 9", Kind::Measured, "another processor"),
        Load::Alone,
        |options| Ok(trees::figure_9(options)),
    ),
    item(
        "fig-10",
        "Number, size and branching of trees by size of the group",
        (
            "appendix A.6 and A.7, Fig. 10",
            Kind::Computed,
            "broken trees are mended and not built anew; groups are drawn",
        ),
        Load::Shared,
        |options| Ok(trees::figure_10(options)),
    ),
    item(
        "table-1",
        "Rates and duplicates of both trees by size of the content store",
        (
            "Table 1",
            Kind::Simulated,
            "the paper's servers forward by software at 870 Mb/s a tree; here links are the only limit",
        ),
        Load::Shared,
        transport::table_1,
    ),
    item(
        "table-2",
        "B.1: δ and T with a slow receiver",
        ("appendix B.1, Table 2", Kind::Simulated, RULES),
        Load::Shared,
        transport::table_2,
    ),
    item(
        "fig-11",
        "B.1: size of the content store with a slow receiver",
        ("appendix B.1, Fig. 11", Kind::Simulated, RULES),
        Load::Shared,
        transport::figure_11,
    ),
    item(
        "fig-12",
        "B.1: loss with a slow receiver",
        ("appendix B.1, Fig. 12", Kind::Simulated, RULES),
        Load::Shared,
        transport::figure_12,
    ),
    item(
        "b-2",
        "B.2: one and two trees, and the simulator's speed",
        ("appendix B.2", Kind::Simulated, "rates begin at 500 Mb/s a tree, and the rise takes its time"),
        Load::Alone,
        transport::two_trees,
    ),
    item(
        "fig-6",
        "Section 7: TCP comes and goes, and a link fails",
        (
            "section 7, Fig. 6",
            Kind::Simulated,
            "TCP and a tree share a link as their windows are to each other, and the paper's servers forward by software",
        ),
        Load::Shared,
        sharing::figure_6,
    ),
    item(
        "fig-13",
        "B.3: sharing a link with TCP",
        (
            "appendix B.3, Fig. 13",
            Kind::Simulated,
            "the paper says neither TCP's window nor w here, and both decide the shares",
        ),
        Load::Shared,
        sharing::figure_13,
    ),
    item(
        "fig-14",
        "B.4: round trips with and without a slow receiver",
        ("appendix B.4, Fig. 14", Kind::Simulated, ""),
        Load::Shared,
        transport::figure_14,
    ),
    item(
        "comparison",
        "Section 7: Datacast, BitTorrent and content-centric networking",
        (
            "section 7, comparison study",
            Kind::Simulated,
            "the paper's servers forward by software at 870 Mb/s; here links are the only limit, and BitTorrent is a model",
        ),
        Load::Shared,
        compare::comparison,
    ),
];
