/* How many rounds a step of RoundPipe has, and which partitioner cuts its stages. More rounds send weights and sums over the links again,
 * and keep fewer boundaries in memory. */
#include "core/log.h"
#include "train/planning.h"

enum { LONG_STEP = 16000 }; /* micro-batches times layers: from there on fewer numbers of rounds are tried */

/* Shares: of a step's time that make no difference, more where the link's rates are not known, and that a quarter of the host's memory is
 * worth; and idle time that is little. */
static const double same_time = 0.005, same_time_by_compute_alone = 0.03, worth_memory = 0.02, much_memory = 0.25, little_idle = 0.08;

struct choice {
	int64_t round;
	int long_rounds; /* by the partitioner for those */
	int stages_most; /* by the host's memory; 0: any number */
};

struct choosing {
	struct rh_session *session;
	struct planning *planning;
	struct choice best; /* round 0: none */
	struct rh_balanced of_best;
	int64_t bytes_of_best;
	double fastest_s, same;
	int slower; /* the last one, than is worth any memory */
};

static int plan_once(const struct choosing *at, struct choice choice)
{
	int kinds = at->session->config->spill;
	planning_set_round(at->planning, choice.round);
	at->planning->balance.long_rounds = choice.long_rounds;
	at->planning->balance.stages_most = choice.stages_most;
	return planning_within_budget(at->session, at->planning, kinds & RH_SPILL_AUTO ? 0 : kinds);
}

/* Boundaries are what grows with a round, and with the number of stages: how many of these the host's memory allows, spare buffers
 * included. 0: none. Of the plan that has just been made. */
static int allowed_stages(const struct rh_session *session, const struct planning *planning)
{
	const struct rh_session_bytes *bytes = &session->bytes;
	int64_t used = planning->options.spare_boundaries * session->plan.boundary_bytes;
	int64_t room = bytes->total_budget - (bytes->total - bytes->boundaries) - planning->spare * session->plan.boundary_bytes;
	double share = bytes->boundaries > used && room > 0 ? (double)room / (double)(bytes->boundaries - used) : 0;
	int stages = session->plan.forward_stages + session->plan.backward_stages, most = (int)(share * stages);
	return most > planning->request.devices && most < stages ? most : 0;
}

/* With all spare buffers: without them devices wait for one another. Fewer, larger stages where boundaries want too much memory. */
static int fit(const struct choosing *at, struct choice *choice)
{
	struct rh_session *session = at->session;
	struct planning *planning = at->planning;
	int rc = plan_once(at, *choice), most;
	if (rc && rc != RH_DOES_NOT_FIT)
		return rc;
	if (!rc && planning->options.spare_boundaries >= planning->spare)
		return 0;
	if (!choice->long_rounds || session->bytes.boundaries_nvme || !(most = allowed_stages(session, planning)))
		return rc;
	rh_error_clear();
	choice->stages_most = most;
	return plan_once(at, *choice);
}

/* In order of the memory that they take, the most first. What does not fit is no choice. */
static int consider(struct choosing *at, int64_t round, int long_rounds)
{
	struct rh_balanced now;
	struct choice choice = {round, long_rounds && at->planning->balances, 0};
	int rc = fit(at, &choice);
	if (rc == RH_DOES_NOT_FIT) {
		rh_error_clear();
		return 0;
	}
	rc = rc ? rc : rh_balance_step(&at->planning->balance, &at->session->plan, &now);
	if (rc)
		return rc;
	now.packed = at->session->balanced.packed;
	at->fastest_s = !at->best.round || now.step_s < at->fastest_s ? now.step_s : at->fastest_s;
	at->slower = now.step_s > at->fastest_s * (1 + worth_memory);
	int64_t bytes = at->session->bytes.total;
	int saves = (double)bytes <= (1 - much_memory) * (double)at->bytes_of_best;
	if (!at->best.round || now.step_s < at->of_best.step_s * (1 - at->same) || (saves && !at->slower)) {
		at->best = choice;
		at->of_best = now;
		at->bytes_of_best = bytes;
		planning_keep(at->session, at->planning);
	}
	return 0;
}

/* The fewest rounds first, until more of them only take longer; the default ones too where devices idle. What fits in the default ones is
 * never refused. */
static int consider_rounds(struct choosing *at, int64_t least)
{
	int64_t count = at->planning->options.train_micro_batches, round;
	int layers = at->planning->costs.layers, rc = 0, goes_on = 1, times = count * layers > LONG_STEP ? 4 : 2;
	for (int64_t rounds = 1; !rc && goes_on && (round = rh_round_count(count, rounds)) > least; rounds *= times) {
		rc = consider(at, round, 1);
		goes_on = !at->slower || at->of_best.idle > little_idle;
	}
	for (int long_rounds = 1; !rc && goes_on && long_rounds >= 0; long_rounds--)
		rc = consider(at, least, long_rounds);
	return rc;
}

int planning_rounds(struct rh_session *session, struct planning *planning)
{
	int64_t round = planning->options.train_round;
	struct choosing at = {.session = session,
	                      .planning = planning,
	                      .same = planning->balance.up_bytes_per_s > 0 ? same_time : same_time_by_compute_alone};
	if (!planning->request.trains || !planning->device_room || !planning->costs.layers ||
	    !rh_schedule_is_roundpipe(planning->options.schedule))
		return 0;
	int rc = session->config->round_micro_batches ? consider(&at, round, 1) : consider_rounds(&at, round);
	if (!rc && session->config->round_micro_batches && planning->balances)
		rc = consider(&at, round, 0);
	if (!rc && at.best.round)
		rc = plan_once(&at, at.best);
	if (!at.best.round)
		planning_set_round(planning, round);
	planning->balance.long_rounds = planning->balance.stages_most = 0;
	if (at.best.round)
		session->balanced = at.of_best;
	return rc ? rc : at.best.round > 0;
}
