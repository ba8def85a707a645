/* Boxes of mode paci in one process, with real devices and lines. A box's inboxes hold what came before the box takes it. The admission
 * limits bound them: activations by the limit of the box below, gradients by the box's own, since a sender has no more units in flight. One
 * box stalls, so that its inboxes fill. */
#include "deep.h"
#include "limit_time.h"

#include "link/pair.h"
#include "session/box.h"

#include <pthread.h>
#include <time.h>

enum { BOXES = 4, LAYERS_EACH = 2, STEPS = 6, MICRO = 4, STALLED = 1, HANG_S = 300 };

static const int64_t paper[BOXES] = {4, 3, 2, 1}, wide[BOXES] = {10, 8, 2, 1};

struct inbox_run;

/* A link that counts what passes. */
struct counted {
	struct rh_link base;
	struct rh_link *inner;
	struct inbox_run *run;
	int64_t received;
};

struct inbox_run {
	struct deep deep;
	struct rig_input in;
	struct rig_micro micro[STEPS * MICRO];
	struct rh_micro_batch batch[MICRO];
	struct counted below, above;
	int number;
	const int64_t *least;        /* a stall waits until inboxes hold more than these limits allow, at most ten seconds; NULL: a while */
	int64_t forwards, backwards; /* the most in an inbox */
};

/* An upper bound of the inbox of activations: a unit counts until the box has sent its own activation, the top box its gradient. */
static void note(struct inbox_run *run)
{
	int64_t taken = run->above.inner ? run->above.base.sends : run->below.base.sends;
	if (run->below.inner)
		run->forwards = rh_max(run->forwards, run->below.received - taken);
}

static int counted_progress(struct rh_link *link, struct rh_link_progress *out)
{
	struct counted *at = (struct counted *)link;
	int rc = at->inner->ops->progress(at->inner, out);
	if (!rc)
		at->received = out->received;
	note(at->run);
	return rc;
}

/* The box's only host thread waits here, so what comes stays in its inboxes. */
static int stall(struct inbox_run *run, int64_t gradients_sent)
{
	enum { MS = 1000000, SHORT = 20, LONG = 10000 };
	struct rh_link_progress progress;
	int rc = 0, is_full = 0;
	for (int ms = 0; !rc && !is_full && ms < (run->least ? LONG : SHORT); ms++) {
		(void)nanosleep(&(struct timespec){0, MS}, NULL);
		rc = counted_progress(&run->below.base, &progress);
		if (!rc)
			rc = counted_progress(&run->above.base, &progress);
		run->backwards = rh_max(run->backwards, run->above.received - gradients_sent);
		is_full = run->least && (gradients_sent ? run->backwards > run->least[STALLED] : run->forwards > run->least[STALLED - 1]);
	}
	return rc;
}

/* It stalls behind its first activation, and behind gradients while others are in flight. */
static int counted_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	struct counted *at = (struct counted *)link;
	int64_t sends = at->base.sends + 1;
	int rc = rh_link_send(at->inner, tag, bytes, size), is_below = at == &at->run->below;
	if (rc || at->run->number != STALLED || (is_below ? sends < MICRO || sends > (STEPS - 3) * MICRO : sends > 1))
		return rc;
	return stall(at->run, is_below ? sends : 0);
}

static int counted_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	return rh_link_receive(((struct counted *)link)->inner, tag, bytes, size);
}

static int counted_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	struct rh_link *inner = ((struct counted *)link)->inner;
	return inner->ops->wait(inner, sent, received);
}

static void counted_abort(struct rh_link *link, const char *line)
{
	struct rh_link *inner = ((struct counted *)link)->inner;
	inner->ops->abort(inner, line);
}

static void counted_close(struct rh_link *link)
{
	rh_link_close(((struct counted *)link)->inner);
}

static const struct rh_link_ops counted_ops = {.close = counted_close,
                                               .send = counted_send,
                                               .receive = counted_receive,
                                               .progress = counted_progress,
                                               .wait = counted_wait,
                                               .abort = counted_abort};

static int begin(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	struct inbox_run *run = context;
	const struct rh_update update = {{0.9, 0.999, 1e-8, 0, 0}, 1e-3, 1, step + 1, 1};
	rh_updater_open(run->deep.rig.session.updater, &update, 0);
	for (int64_t m = 0; m < MICRO; m++) {
		struct rig_micro *micro = &run->micro[step * MICRO + m];
		rig_micro_make(&run->in, (step * MICRO + m) % run->in.micros, 0, micro);
		run->batch[m] = micro->batch;
	}
	*batch = run->batch;
	*loss_scale = 1e-2F;
	return 0;
}

static int end(void *context, int64_t step, const struct rh_versions *versions)
{
	struct inbox_run *run = context;
	double norm;
	(void)step, (void)versions;
	return rh_updater_norm(run->deep.rig.session.updater, &norm);
}

static void *run_box(void *context)
{
	struct inbox_run *run = context;
	const struct rh_stretch stretch = {.steps = STEPS, .micro_batches = MICRO, .begin = begin, .end = end, .context = run};
	check_ok(rh_executor_train_stretch(run->deep.rig.session.executor, &stretch));
	check_ok(rh_updater_flush(run->deep.rig.session.updater));
	return NULL;
}

static struct rh_link *count(struct inbox_run *run, struct counted *at, struct rh_link *inner)
{
	*at = (struct counted){.base = {.ops = &counted_ops}, .inner = inner, .run = run};
	return inner ? &at->base : NULL;
}

/* What mode paci does when boxes have met. */
static void open_box(struct inbox_run *run, const int64_t *limits, struct rh_link *below, struct rh_link *above)
{
	struct rig *rig = &run->deep.rig;
	struct rh_session *session = &rig->session;
	deep_open(&run->deep, "llama2", BOXES * LAYERS_EACH - 2); /* embedding and head are layers, too */
	rig->config.schedule = (char *)(uintptr_t) "paci";
	rig->config.max_grad_norm = 0;
	run->in = rig_input(rig, "train");
	check_ok(rh_session_open(&rig->config, RH_SESSION_TRAINS, session));
	rig->config.mode = RH_MODE_PACI; /* from now on: opening would have made links of its own */
	rig->config.boxes = BOXES;
	rig->config.box = run->number + 1;
	session->box = (struct rh_box){.boxes = BOXES,
	                               .number = run->number,
	                               .lo = run->number * LAYERS_EACH,
	                               .hi = (run->number + 1) * LAYERS_EACH,
	                               .link_below = count(run, &run->below, below),
	                               .link_above = count(run, &run->above, above)};
	session->admission_limit = limits;
	rh_model_keep(session->model, session->box.lo, session->box.hi);
	const struct rh_workload work = {.train = rig_limits(&run->in, 0), .train_micro_batches = MICRO};
	check_ok(rh_session_start(session, &work));
}

static void train(struct inbox_run *run, const int64_t *limits, const int64_t *least)
{
	const struct rh_pair_options line = {.messages = RH_BOX_MESSAGES, .latency_ns = 100000, .seed = check_seed()};
	struct rh_link *end_of[BOXES - 1][2];
	pthread_t thread[BOXES];
	for (int k = 0; k + 1 < BOXES; k++)
		check_ok(rh_pair_open(&line, end_of[k]));
	for (int k = 0; k < BOXES; k++) {
		run[k] = (struct inbox_run){.number = k, .least = least};
		open_box(&run[k], limits, k ? end_of[k - 1][1] : NULL, k + 1 < BOXES ? end_of[k][0] : NULL);
	}
	for (int k = 0; k < BOXES; k++)
		assert_int_equal(pthread_create(&thread[k], NULL, run_box, &run[k]), 0);
	for (int k = 0; k < BOXES; k++)
		pthread_join(thread[k], NULL);
	for (int k = 0; k < BOXES; k++) {
		printf("box %d: at most %lld activations and %lld gradients came early\n", k + 1, (long long)run[k].forwards,
		       (long long)run[k].backwards);
		run[k].deep.rig.config.schedule = NULL;
		deep_close(&run[k].deep);
	}
}

static void test_inboxes_are_bounded_by_the_admission_limits(void **state)
{
	(void)state;
	static struct inbox_run run[BOXES];
	train(run, paper, NULL);
	for (int k = 1; k < BOXES; k++)
		assert_in_range(run[k].forwards, 1, paper[k - 1]);
	assert_in_range(run[STALLED].backwards, 1, paper[STALLED]);
}

/* What the test above asserts fails where limits are wider. */
static void test_wider_limits_overfill_the_inboxes(void **state)
{
	(void)state;
	static struct inbox_run run[BOXES];
	train(run, wide, paper);
	assert_in_range(run[STALLED].forwards, paper[STALLED - 1] + 1, wide[STALLED - 1]);
	assert_in_range(run[STALLED].backwards, paper[STALLED] + 1, wide[STALLED]);
}

int main(void)
{
	limit_time(HANG_S);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_inboxes_are_bounded_by_the_admission_limits),
	        cmocka_unit_test(test_wider_limits_overfill_the_inboxes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
