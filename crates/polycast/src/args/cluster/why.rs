//! What can be typed for `polycast why`.

use super::local::LocalArgs;
use clap::Args as Arguments;

/// `polycast why`
#[derive(Arguments, Debug)]
pub(crate) struct WhyArgs {
    /// A key (sha256:HEX), or the name of a repository or an image, as `polycast status` shows it
    #[arg(value_name = "KEY|NAME")]
    pub what: String,
    #[command(flatten)]
    pub local: LocalArgs,
}
