//! Users who make one call each, over a connection that is made for it.

use plimsoll_engine::script::scenario::{Scenario, UserCall};
use plimsoll_engine::script::user::UserScripts;
use plimsoll_engine::script::worker::ScriptWorker;
use plimsoll_model::plan::Target;

use super::*;

/// A user who makes one call.
pub(crate) struct SingleCall(pub(crate) Ids);

impl Scenario for SingleCall {
    type Protocol = Ids;
    type UserState = ();

    fn protocol(&self) -> &Ids {
        &self.0
    }
    fn max_calls(&self) -> u32 {
        1
    }
    fn pause_before(&self, _call: u32) -> Duration {
        Duration::ZERO
    }
    fn replaces_lost_connections(&self) -> bool {
        true
    }
    fn prepare_call(
        &self,
        _call: UserCall,
        _now: Time,
        (): &mut (),
        _driver: &mut IdsDriver,
    ) -> Result<(), (Outcome, String)> {
        Ok(())
    }
    fn on_response_text(&self, _text: String, (): &mut ()) {}
}

#[test]
fn user_call_receives_wait_for_connection() {
    for delay_ms in [0, 20] {
        let protocol = Ids::default();
        let seen = Arc::clone(&protocol.waited);
        let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 10.0, 1);
        let target = Target::new_tcp("ids://127.0.0.1:1", "127.0.0.1", 1);
        let users = UserScripts::new(SingleCall(protocol), &target, None, &load);
        let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(load), 1);
        let network = SimulatedNetwork::new(echo(delay_ms), NetworkConditions::faultless(1));
        let mut worker = ScriptWorker::new(share, network, Arc::new(users));
        let mut control = new_control(None);
        control.start = Some(Time(5_000_000_000));
        worker.run(Time(5_000_000_000), &mut control).unwrap();
        let record = control.total.stage_mut(0).clone();
        assert_eq!((record.due, record.ok_calls()), (20, 20), "{record:?}");
        let seen = seen.lock().unwrap();
        // The call is sent when the server has echoed the greeting.
        assert_eq!(seen.len(), if delay_ms == 0 { 0 } else { 20 });
        let expected = Duration::from_millis(20)..Duration::from_millis(22);
        assert!(
            seen.iter().all(|waited| expected.contains(waited)),
            "{seen:?}"
        );
    }
}
