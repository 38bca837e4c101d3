//! `plimsoll ladder`: measures what each variant of a plan adds.

use std::path::Path;

use clap::Args;
use plimsoll_model::spec::{
    CallSpec, LadderSpec, RowsSpec, RungTable, Spec, apply_flags_to_optional, schemes_for_url,
};
use plimsoll_protocols::registry::{self, DefaultFlags};
use plimsoll_report::ladder as shown;
use plimsoll_report::sentences::closing;

use crate::failure::{Exit, Failure};
use crate::ladder_run::{self, LadderFlags, LadderRequest};
use crate::load::execution;
use crate::load::process::ProcessContext;
use crate::settings::origins::{FlagOrigins, Precedence};
use crate::settings::problems::{self, PlanSource};
use crate::shards::ShardContext;

/// Measure variants of a plan, or services, side by side, and report what each adds.
///
/// The plan's section [ladder] lists axes with their values; every combination is a variant, called a rung. Instead of
/// a plan, two or more gRPC services can be given, one rung each.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: what TLS and client certificates add, with a server of ours for each
  plimsoll ladder plans/score-ladder.toml
Example: what HAProxy and NGINX add, which the ladder configures, starts and stops
  plimsoll ladder plans/score-ladder.toml --via direct,haproxy,nginx
Example: what two Envoys with mutual TLS between them add, as in a service mesh
  plimsoll ladder plans/score-ladder.toml --via direct,envoy,envoy+envoy
Example: what TLS and a proxy add to a service of your own
  plimsoll ladder plain=grpc://svc:80 tls=grpcs://svc:443 proxied=grpcs://proxy:443 --ca ca.crt \\
      -m score.ScoreService/GetScore -d '{\"json\": \"[0.1, 0.2]\"}' --rate 500/s",
    after_help = crate::settings::environment::VARIABLES_HELP)]
pub(crate) struct LadderArguments {
    /// A plan; or two or more services, each as grpc://HOST:PORT or grpcs://HOST:PORT, optionally with a name:
    /// NAME=URL.
    #[arg(value_name = "PLAN|[NAME=]URL", required = true)]
    what: Vec<String>,

    #[command(flatten)]
    call: DefaultFlags,

    /// What to put between load and server, one rung each, instead of the plan's `via`: direct, a proxy that `plimsoll
    /// proxies` lists, a chain of proxies (envoy+envoy), "one sidecar", "two sidecars".
    #[arg(long, value_name = "PROXIES", value_delimiter = ',')]
    via: Vec<String>,

    #[command(flatten)]
    pub(crate) ladder: LadderFlags,

    #[command(flatten)]
    rows: RowsSpec,
}

pub(crate) fn execute(
    arguments: &LadderArguments,
    process: &ProcessContext,
    meeting: Option<&ShardContext>,
) -> Result<Exit, Failure> {
    let origins = &process.origins;
    let flags = &arguments.ladder;
    let services: Vec<(&str, &str)> = arguments
        .what
        .iter()
        .filter_map(|w| split_service(w))
        .collect();
    let (mut spec, text) = match arguments.what.as_slice() {
        [plan] if services.is_empty() => {
            reject_call_flags(origins)?;
            flags.read_spec(Path::new(plan), origins)?
        }
        all if services.len() == all.len() && (all.len() > 1 || arguments.via.len() > 1) => (
            arguments.spec_from_services(&services, origins)?,
            String::new(),
        ),
        _ => {
            let (plain, secured) = schemes_for_url("");
            return Err(Failure::usage(
                "ladder takes one plan, or two or more services",
                &format!(
                    "for example: plimsoll ladder plain={plain}://svc:80 tls={secured}://svc:443 -m pkg.Service/Method --rate 500/s"
                ),
            ));
        }
    };
    apply_flags_to_optional("rows", &arguments.rows, &mut spec.rows)
        .map_err(problems::flag_failure)?;
    if !arguments.via.is_empty() {
        let ladder = spec.ladder.get_or_insert_default();
        let ways = arguments.via.iter().cloned().map(Into::into).collect();
        ladder.axes.insert("via".to_owned(), ways);
    }
    let source = if services.is_empty() {
        PlanSource::File {
            name: arguments.what[0].clone(),
            text: &text,
        }
    } else {
        PlanSource::Flags
    };
    let asked = LadderRequest {
        kind: "ladder",
        flags,
        source: &source,
        process,
        shard_context: meeting,
        services: None,
    };
    ladder_run::execute(&spec, &asked, |mut climb| {
        climb.run()?;
        let (record, made) = (&climb.record, &process.output_dirs);
        execution::show_record(
            &climb.dir,
            flags.documents.stdout_content(),
            made,
            |options| {
                shown::render(record, options)
                    + &shown::render_profiles(record, &climb.dir, options)
            },
            |options| closing::ladder_lines(record, options),
        )?;
        Ok(climb.exit_code())
    })
}

/// Splits `NAME=URL`, or a URL without a name, into name (possibly empty) and URL; `None` if there is no URL.
fn split_service(typed: &str) -> Option<(&str, &str)> {
    let scheme = typed.split_once("://")?.0;
    match scheme.split_once('=') {
        Some((name, _)) => Some((name, &typed[name.len() + 1..])),
        None => Some(("", typed)),
    }
}

/// Returns a typed flag that sets a key of the plan's call, without its dashes; `None` if no such flag was typed.
pub(crate) fn find_call_flag(origins: &FlagOrigins) -> Option<String> {
    let flags = DefaultFlags::augment_args(clap::Command::new("call"));
    let typed = |flag: &&clap::Arg| {
        origins.precedence(flag.get_id().as_str()) == Some(Precedence::CommandLine)
    };
    let found = flags.get_arguments().find(typed)?;
    found.get_long().map(str::to_owned)
}

/// Rejects flags that describe a call, for commands that get a plan, which defines its calls.
///
/// # Errors
/// When a flag that describes a call was typed.
pub(crate) fn reject_call_flags(origins: &FlagOrigins) -> Result<(), Failure> {
    match find_call_flag(origins) {
        None => Ok(()),
        Some(flag) => Err(Failure::usage(
            format_args!("--{flag} can't be combined with a plan"),
            &format!(
                "the plan says what is called, in [call.{}]; flags of the call are for services that are given as URLs",
                registry::default_schemes().section
            ),
        )),
    }
}

impl LadderArguments {
    /// Returns a spec with one rung per service.
    fn spec_from_services(
        &self,
        services: &[(&str, &str)],
        origins: &FlagOrigins,
    ) -> Result<Spec, Failure> {
        let wrong = |problem| problems::failure(vec![problem], &PlanSource::Flags);
        let call = CallSpec::from_section(&self.call.to_plan_section()?).map_err(wrong)?;
        let rungs = services.iter().map(|(name, url)| {
            let name = if name.is_empty() { url } else { name };
            RungTable {
                name: Some((*name).to_owned()),
                target: Some((*url).to_owned()),
                ..RungTable::default()
            }
        });
        let mut spec = Spec {
            target: Some(services[0].1.to_owned()),
            call,
            ladder: Some(LadderSpec {
                rungs: Some(rungs.collect()),
                ..LadderSpec::default()
            }),
            ..Spec::default()
        };
        self.ladder.load.apply(&mut spec, origins)?;
        Ok(spec)
    }
}
