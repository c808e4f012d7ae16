//! `polycast image`: images of container registries.

mod hosts;

use super::hf::send_on;
use super::runtime;
use crate::args::cluster::image::{ImageArgs, ImageCommand, PullArgs};
use crate::args::cluster::local::Destinations;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use futures_util::stream::{self, StreamExt as _};
use polycast_api::client::{AgentClient, default_socket};
use polycast_gateway::{Image, ImagePuller, PulledBlob};
use polycast_types::{Printable, format_bytes};
use serde_json::{Value, json};

/// Layers on their way at a time.
const LAYERS_MAX: usize = 8;

/// The platform of this machine in the words of registries.
fn own_platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{architecture}")
}

/// Runs `polycast image`.
pub(super) fn run(args: &ImageArgs, format: Format) -> Result<Exit, Failure> {
    match &args.command {
        ImageCommand::Pull(args) => pull(args, format),
        ImageCommand::Hosts(args) => hosts::run(args, format),
    }
}

fn pull(args: &PullArgs, format: Format) -> Result<Exit, Failure> {
    let name = &args.image;
    let refused = |why: String| Failure::input(format!("cannot pull {name}: {}", Printable(&why)));
    let image = Image::parse(name).ok_or_else(|| {
        refused("that is no image".into())
            .hint("write NAME:TAG, REGISTRY/NAME:TAG, or REGISTRY/NAME@sha256:HEX")
    })?;
    let platform = args.platform.clone().unwrap_or_else(own_platform);
    let socket = args.local.socket.clone().unwrap_or_else(default_socket);
    let files = runtime()?.block_on(async {
        // Without an agent nothing needs to be asked.
        let agent = AgentClient::connect(&socket).await?;
        let puller = ImagePuller::new(image, &socket).map_err(refused)?;
        let (manifests, left) = puller.manifests(&platform).await.map_err(refused)?;
        let mut files: Vec<Value> = Vec::new();
        for manifest in &manifests {
            files.push(take(&agent, manifest, args.to.as_ref()).await?);
        }
        let one = async |left| {
            let brought = puller.get(left).await.map_err(refused)?;
            take(&agent, &brought, args.to.as_ref()).await
        };
        let pulls: Vec<_> = left.iter().map(one).collect();
        let mut pulls = stream::iter(pulls).buffered(LAYERS_MAX);
        while let Some(file) = pulls.next().await {
            files.push(file?);
        }
        drop(pulls);
        Ok::<_, Failure>(files)
    })?;
    let digest = files.first().map(|file| file["digest"].clone()).unwrap_or_default();
    let layers = files.iter().filter(|file| file["kind"] == "layer").count();
    let layers = output::counted(layers, "layer");
    let text = format!("{name}: {} with {layers}", digest.as_str().unwrap_or_default());
    let document = json!({ "image": name, "digest": digest, "platform": platform, "files": files });
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

/// Sends on what has been brought; gives what is said of it.
async fn take(
    agent: &AgentClient,
    brought: &PulledBlob,
    to: Option<&Destinations>,
) -> Result<Value, Failure> {
    let PulledBlob { kind, digest, bytes, object, source } = brought;
    if let (Some(to), Some(object)) = (to, object) {
        send_on(agent, object, digest, to).await?;
    }
    output::say(&format!("{kind} {digest} ({}): {source}", format_bytes(*bytes)));
    Ok(json!({ "kind": kind, "digest": digest, "bytes": bytes, "source": source }))
}
