/* What happens to the lines, processes and strangers around boxes that train together: the run goes on, or resumes, to the bits of a run
 * that nothing happened to. */
#include "cli/boxes.h"
#include "link/relay.h"

#include "checkpoint/checkpoint.h"
#include "core/clock.h"
#include "link/frame.h"
#include "link/identity.h"
#include "link/tcp.h"

/* A run of several boxes, with a relay in each line. */
struct rig {
	struct scratch scratch;
	int boxes;
	char keys[BOXES_MOST][1024];
	struct box_wire wire[BOXES_MOST];
	struct relay relay[BOXES_MOST];
	struct ran ran[BOXES_MOST];
};

/* most_bytes: between two cuts of each line; 0: none is cut. */
static void rig_open(struct rig *rig, int boxes, const char *keys, int64_t most_bytes, int cuts)
{
	char secret[BOXES_MOST][512] = {0};
	*rig = (struct rig){.boxes = boxes};
	uint64_t seed = check_seed();
	make_files(&rig->scratch);
	make_keys(&rig->scratch, boxes, secret);
	for (int k = 0; k < boxes; k++)
		snprintf(rig->keys[k], sizeof rig->keys[k], "%s%s", keys, secret[k]);
	for (int k = 0; k + 1 < boxes; k++) {
		int port = free_port();
		relay_open(&rig->relay[k], most_bytes, seed + (uint64_t)k);
		rig->relay[k].most_cuts = cuts;
		snprintf(rig->wire[k].listens, sizeof rig->wire[k].listens, "127.0.0.1:%d", port);
		snprintf(rig->wire[k].connects, sizeof rig->wire[k].connects, "127.0.0.1:%d", rig->relay[k].port);
		relay_start(&rig->relay[k], port);
	}
}

static void rig_close(struct rig *rig)
{
	for (int k = 0; k + 1 < rig->boxes; k++)
		relay_close(&rig->relay[k]);
	scratch_close(&rig->scratch);
}

/* One box alone, whose bits all others must have. */
static void run_alone(struct rig *rig, const char *keys, const char *more)
{
	write_config(&rig->scratch, keys, 1, 0, NULL);
	run_ok(&rig->scratch, "train %s/run0.yaml%s", rig->scratch.dir, more);
}

static void start_box(struct rig *rig, int k, const char *more)
{
	write_config(&rig->scratch, rig->keys[k], rig->boxes, k + 1, rig->wire);
	run_start(&rig->scratch, path_of("train %s/run%d.yaml%s", rig->scratch.dir, k + 1, more), 0, &rig->ran[k]);
}

static void start_all(struct rig *rig, const char *more)
{
	for (int k = 0; k < rig->boxes; k++)
		start_box(rig, k, more);
}

static void finish_all(struct rig *rig)
{
	for (int k = 0; k < rig->boxes; k++)
		run_wait(&rig->ran[k]);
	for (int k = 0; k < rig->boxes; k++) {
		if (rig->ran[k].status)
			fail_msg("box %d of %d: exit %d: %s", k + 1, rig->boxes, rig->ran[k].status, rig->ran[k].err);
		run_free(&rig->ran[k]);
	}
}

#define PLAIN_KEYS "device: cpu:1\nlink_timeout: 2\nlink_give_up: 60\n"

/* Lines break again and again, in the greeting and in the middle of messages. */
static void test_every_line_cut_at_random_moments_changes_no_bit(void **state)
{
	(void)state;
	static const char keys[] = PLAIN_KEYS "save_strategy: \"no\"\n";
	int cuts = getenv("RH_LONG") ? 200 : 12;
	struct rig rig;
	char steps[64];
	snprintf(steps, sizeof steps, " --max_steps %d", 3 * cuts);
	rig_open(&rig, 3, keys, 20000, cuts);
	run_alone(&rig, keys, steps);
	start_all(&rig, steps);
	finish_all(&rig);
	for (int k = 0; k < 2; k++) {
		printf("line %d was cut %d times\n", k + 1, (int)rig.relay[k].cuts);
		assert_true(rig.relay[k].cuts >= cuts);
	}
	check_weights(&rig.scratch, "model.safetensors", 3);
	rig_close(&rig);
}

static void wait_for_checkpoints(const struct rig *rig, int64_t step)
{
	for (int k = 0; k < rig->boxes; k++)
		for (int i = 0; i < 60000 && !is_there(&rig->scratch, k + 1, step); i++)
			usleep(1000);
}

/* The lowest line breaks for good: the boxes at its ends give it up, the third is told, each saves the step that it has done. */
static void test_a_line_that_stays_broken_ends_the_run_on_checkpoints(void **state)
{
	(void)state;
	static const char keys[] = "device: cpu:1\nsave_strategy: steps\nsave_steps: 40\nlink_timeout: 0.5\nlink_give_up: 0.5\n";
	static const char resume[] = " --max_steps 400 --resume_from_checkpoint true";
	struct rig rig;
	uint64_t seed = check_seed();
	rig_open(&rig, 3, keys, 0, 0);
	run_alone(&rig, keys, " --max_steps 400");
	start_all(&rig, " --max_steps 400");
	wait_for_checkpoints(&rig, 40);
	usleep(check_random(&seed) % 300000);
	rig.relay[0].is_down = 1;
	for (int k = 0; k < 3; k++) {
		run_wait(&rig.ran[k]);
		printf("box %d: %s", k + 1, strstr(rig.ran[k].err, "roundhouse train: "));
		check_failed(&rig.ran[k], k < 2 ? "no connection for 0.5 s (link_give_up); stopped after" : "the peer stopped: ");
		check_failed(&rig.ran[k], ", whose checkpoint is written");
		run_free(&rig.ran[k]);
	}
	rig.relay[0].is_down = 0;
	start_all(&rig, resume);
	finish_all(&rig);
	check_weights(&rig.scratch, "model.safetensors", 3);
	rig_close(&rig);
}

/* Until the box looks for its neighbours, and two seconds more, in which one that is there has found it. */
static void wait_until_it_looks(const struct rig *rig, int k)
{
	int looks = 0;
	for (int i = 0; i < 3000 && !looks; i++) {
		struct rh_bytes said;
		usleep(20000);
		check_ok(rh_file_load(rig->ran[k].err_path, &said));
		looks = said.length && memmem(said.bytes, said.length, "waiting for", 11) != NULL;
		rh_bytes_free(&said);
	}
	assert_true(looks);
	sleep(2);
}

/* Box 1 is killed and started again before box 3 is there, or after it: box 2, which has met it and waits for box 3, meets it once more. */
static void check_met_anew(int before_all_are_there)
{
	static const char keys[] = "device: cpu:1\nlink_give_up: 30\nsave_strategy: \"no\"\n";
	struct rig rig;
	struct ran first;
	rig_open(&rig, 3, keys, 0, 0);
	run_alone(&rig, keys, "");
	start_box(&rig, 0, "");
	start_box(&rig, 1, "");
	wait_until_it_looks(&rig, 0);
	wait_until_it_looks(&rig, 1);
	kill(rig.ran[0].pid, SIGKILL);
	run_wait(&rig.ran[0]);
	first = rig.ran[0];
	for (int i = 0; i < 2; i++) {
		int k = (i == 0) == before_all_are_there ? 0 : 2;
		start_box(&rig, k, "");
		wait_until_it_looks(&rig, k);
	}
	finish_all(&rig);
	check_weights(&rig.scratch, "model.safetensors", 3);
	run_free(&first);
	rig_close(&rig);
}

static void test_a_box_started_again_before_all_are_there_is_met_anew(void **state)
{
	(void)state;
	check_met_anew(1);
}

static void test_a_box_that_dies_before_all_are_there_is_waited_for(void **state)
{
	(void)state;
	check_met_anew(0);
}

/* Whoever ends in an error is started again, as systemd's Restart=on-failure would: from its newest checkpoint where it has one. */
struct keeper {
	struct rig *rig;
	const char *more;
	int is_over[BOXES_MOST]; /* exited with 0 */
	int begins_anew, starts, anew;
};

static void keep_start(struct keeper *keeper, int k)
{
	char line[256];
	const char *out = path_of("%s/out%d", keeper->rig->scratch.dir, k + 1);
	int resumes = rh_checkpoint_count(out) > 0;
	if (!resumes)
		check_ok(rh_dir_remove(out));
	snprintf(line, sizeof line, "%s%s", keeper->more, resumes ? " --resume_from_checkpoint true" : "");
	start_box(keeper->rig, k, line);
	keeper->is_over[k] = 0;
	keeper->starts++;
}

/* A box that has a checkpoint and one that has none do not go together: a person would begin anew. */
static void keep_begin(struct keeper *keeper)
{
	for (int k = 0; k < keeper->rig->boxes; k++) {
		if (keeper->starts && !keeper->is_over[k]) {
			kill(keeper->rig->ran[k].pid, SIGKILL);
			run_wait(&keeper->rig->ran[k]);
			run_free(&keeper->rig->ran[k]);
		}
		check_ok(rh_dir_remove(path_of("%s/out%d", keeper->rig->scratch.dir, k + 1)));
	}
	keeper->anew += keeper->begins_anew;
	keeper->begins_anew = 0;
	for (int k = 0; k < keeper->rig->boxes; k++)
		keep_start(keeper, k);
}

/* 1: it has just ended; 0 in *status: well. */
static int has_ended(struct keeper *keeper, int k, int *status)
{
	struct ran *ran = &keeper->rig->ran[k];
	siginfo_t ended = {0};
	if (keeper->is_over[k] || waitid(P_PID, (id_t)ran->pid, &ended, WEXITED | WNOHANG | WNOWAIT) || !ended.si_pid)
		return 0;
	run_wait(ran);
	*status = ran->status;
	if (ran->status && ran->status != 1 && ran->status != 128 + SIGKILL)
		fail_msg("box %d: exit %d: %s", k + 1, ran->status, ran->err);
	keeper->is_over[k] = 1;
	keeper->begins_anew |= strstr(ran->err, "all begin anew") != NULL;
	run_free(ran);
	return 1;
}

/* 1: all boxes have ended well. */
static int keep_up(struct keeper *keeper)
{
	int boxes = keeper->rig->boxes, failed = 0, over = 1, status = 0;
	for (int k = 0; k < boxes; k++)
		failed |= has_ended(keeper, k, &status) && status;
	if (keeper->begins_anew) {
		keep_begin(keeper);
		return 0;
	}
	for (int k = 0; k < boxes; k++) {
		if (failed && keeper->is_over[k]) /* those that had ended well are needed once more */
			keep_start(keeper, k);
		over &= keeper->is_over[k];
	}
	return over;
}

/* Boxes, the one box that computes the same, and what both write. */
struct killed {
	const char *keys, *alone, *steps, *file;
	int pieces;
};

/* Boxes are killed in turn at random moments: as they start, meet, compute, save and write their results. */
static void check_kills(const struct killed *killed)
{
	int kills = getenv("RH_LONG") ? 60 : 6, runs = 0;
	struct rig rig;
	uint64_t seed = check_seed();
	rig_open(&rig, 3, killed->keys, 0, 0);
	write_text(path_of("%s/rows.jsonl", rig.scratch.dir), ROWS ROWS ROWS ROWS); /* mode paci: no step shorter than the others */
	run_alone(&rig, killed->alone, killed->steps);
	struct keeper keeper = {.rig = &rig, .more = killed->steps};
	keep_begin(&keeper);
	for (int64_t next_ns = 0; kills || !runs;) {
		if (keep_up(&keeper)) {
			check_weights(&rig.scratch, killed->file, killed->pieces);
			runs++;
			if (kills)
				keep_begin(&keeper);
		}
		if (kills && rh_clock_ns() >= next_ns) {
			int victim = kills % 3;
			kills -= next_ns && !keeper.is_over[victim] && !kill(rig.ran[victim].pid, SIGKILL);
			next_ns = rh_clock_ns() + (int64_t)(check_random(&seed) % 600) * 1000000;
			runs = kills ? runs : 0; /* one whole run after the last kill */
		}
		usleep(2000);
	}
	printf("%d starts of boxes, %d times all began anew\n", keeper.starts, keeper.anew);
	rig_close(&rig);
}

#define LINKED      "link_timeout: 2\nlink_give_up: 20\n"
#define SAVES_OFTEN "device: cpu:1\nsave_strategy: steps\nsave_steps: 2\nsave_total_limit: 1\n" LINKED
#define LORA        "lora_r: 4\nlora_target_modules: all-linear\n"
/* Boxes rest, and save, each eight steps. */
#define RESTS "save_strategy: steps\nsave_steps: 8\nsave_total_limit: 1\nmax_grad_norm: 0\n"

static void test_boxes_killed_at_random_moments_change_no_bit(void **state)
{
	(void)state;
	static const struct killed cases[] = {{SAVES_OFTEN, SAVES_OFTEN, " --max_steps 24", "model.safetensors", 3},
	                                      {SAVES_OFTEN LORA, SAVES_OFTEN LORA, " --max_steps 24", "adapter_model.safetensors", 1},
	                                      {RESTS LINKED "device: cpu:1\nmode: paci\nround_micro_batches: 1\nbox_cuts: [2, 4]\n",
	                                       RESTS "device: cpu:3\nschedule: paci\nforward_cuts: [2, 4]\n", " --max_steps 40",
	                                       "model.safetensors", 3}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_kills(&cases[i]);
}

/* All have ended, and are started again: nothing is left to do, unless one of them, killed before its end, lacks its result. */
static void check_started_again(const char *keys, const char *file, int pieces, int lacks)
{
	static const char resume[] = " --resume_from_checkpoint true";
	struct rig rig;
	rig_open(&rig, 3, keys, 0, 0);
	run_alone(&rig, keys, "");
	start_all(&rig, "");
	finish_all(&rig);
	start_all(&rig, resume);
	for (int k = 0; k < 3; k++) {
		run_wait(&rig.ran[k]);
		if (rig.ran[k].status || !strstr(rig.ran[k].err, "nothing is left to do"))
			fail_msg("box %d: exit %d: %s", k + 1, rig.ran[k].status, rig.ran[k].err);
		run_free(&rig.ran[k]);
	}
	assert_false(unlink(path_of("%s/out%d/%s", rig.scratch.dir, lacks, file)));
	start_all(&rig, resume);
	finish_all(&rig);
	check_weights(&rig.scratch, file, pieces);
	rig_close(&rig);
}

static void test_boxes_that_have_ended_are_started_again(void **state)
{
	(void)state;
	check_started_again(SAVES_OFTEN, "model.safetensors", 3, 2);
	check_started_again(SAVES_OFTEN LORA, "adapter_model.safetensors", 1, 1);
}

/* What strangers send to a listening box: an old version's frame, a frame larger than any, a message before the greeting, another greeting,
 * an unknown kind, another protocol. */
static void send_malformed(int port, int which)
{
	static const char hello[] = "program=stranger\n", other[] = "GET / HTTP/1.1\r\nHost: box\r\n\r\n";
	unsigned char bytes[FRAME_HEADER + sizeof hello] = {0};
	struct frame frame = {
	        .type = which == 2 ? FRAME_DATA : FRAME_HELLO, .a = 7, .c = 1 << 20, .payload = hello, .length = sizeof hello - 1};
	int descriptor = relay_socket(port, 0);
	if (descriptor < 0)
		return; /* the box is not there yet, or no more */
	frame_encode(&frame, bytes);
	memcpy(bytes + FRAME_HEADER, hello, frame.length);
	if (which == 0)
		bytes[3]--; /* the magic's version */
	if (which == 1)
		memset(bytes + 8, 0xff, 4); /* the length */
	if (which == 4)
		bytes[4] = 99; /* the kind */
	(void)!send(descriptor, which == 5 ? (const void *)other : bytes, which == 5 ? sizeof other : FRAME_HEADER + frame.length,
	            MSG_NOSIGNAL);
	char reply[64];
	struct pollfd waits = {.fd = descriptor, .events = POLLIN};
	poll(&waits, 1, 20);
	(void)!recv(descriptor, reply, sizeof reply, MSG_DONTWAIT);
	close(descriptor);
}

static int is_running(const struct ran *ran)
{
	siginfo_t ended = {0};
	return !waitid(P_PID, (id_t)ran->pid, &ended, WEXITED | WNOHANG | WNOWAIT) && !ended.si_pid;
}

/* Somebody with a key that nobody named, and somebody with the right one that greets otherwise. */
static void knock(const struct rig *rig, int port, int is_known)
{
	char address[32], identity[256], hash[RH_IDENTITY_HASH];
	struct rh_link *link;
	snprintf(address, sizeof address, "127.0.0.1:%d", port);
	snprintf(identity, sizeof identity, "%s/box1.pem", rig->scratch.dir);
	check_ok(rh_identity_hash(identity, hash));
	snprintf(identity, sizeof identity, "%s/%s.pem", rig->scratch.dir, is_known ? "box2" : "stranger");
	check_ok(rh_tcp_open(&(struct rh_tcp_options){.address = address,
	                                              .identity = identity,
	                                              .peer = hash,
	                                              .greeting = "program=another\n",
	                                              .messages = 1,
	                                              .timing = {.give_up_ns = 500000000}},
	                     &link));
	int rc = link->ops->wait(link, 1, 0);
	if (is_running(&rig->ran[0]))
		assert_true(rc == -ETIMEDOUT || rc == (is_known ? -EINVAL : -EACCES));
	rh_link_close(link);
}

/* Box 1 is called by strangers all the time while its line breaks now and then: some are silent, some loud, some malformed. */
static void check_strangers(int encrypts)
{
	enum { SILENT = 200 };
	static const char keys[] = PLAIN_KEYS "save_strategy: \"no\"\n";
	struct rig rig;
	int silent[SILENT], calls = 0;
	rig_open(&rig, 2, keys, 100000, 8);
	int port = rig.relay[0].to_port;
	for (int k = 0; k < 2 && !encrypts; k++)
		snprintf(rig.keys[k], sizeof rig.keys[k], "%s", keys);
	run_ok(&rig.scratch, "keys --link_identity %s/stranger.pem", rig.scratch.dir);
	run_alone(&rig, keys, " --max_steps 60");
	start_box(&rig, 0, " --max_steps 60");
	for (int i = 0; i < SILENT; i++)
		for (int tries = 0; (silent[i] = relay_socket(port, 0)) < 0 && tries < 2000; tries++)
			usleep(1000);
	start_box(&rig, 1, " --max_steps 60");
	/* before boxes have met another greeting ends both: it is the peer's */
	for (int i = 0; i < 60000 && !rh_file_exists(path_of("%s/out1/metrics.jsonl", rig.scratch.dir)); i++)
		usleep(1000);
	for (; is_running(&rig.ran[0]) && is_running(&rig.ran[1]); calls++) {
		send_malformed(port, calls % 6);
		if (encrypts && calls % 6 == 5)
			knock(&rig, port, calls % 12 == 5);
		for (int i = 0; i < 5; i++)
			close(relay_socket(port, 0));
	}
	for (int i = 0; i < SILENT; i++)
		close(silent[i]);
	for (int k = 0; k < 2; k++)
		run_wait(&rig.ran[k]);
	for (int k = 0; k < 2; k++)
		if (rig.ran[k].status)
			fail_msg("box %d: exit %d: %s", k + 1, rig.ran[k].status, rig.ran[k].err);
	const char *logged = strstr(rig.ran[0].err, "was refused: ");
	assert_non_null(logged);
	assert_null(strstr(logged + 1, "was refused: ")); /* strangers do not fill the log */
	printf("%d rounds of calls, %d cuts; logged: %.*s\n", calls, (int)rig.relay[0].cuts, (int)strcspn(logged, "\n"), logged);
	check_weights(&rig.scratch, "model.safetensors", 2);
	for (int k = 0; k < 2; k++)
		run_free(&rig.ran[k]);
	rig_close(&rig);
}

static void test_strangers_are_refused_logged_and_change_no_bit(void **state)
{
	(void)state;
	check_strangers(1);
	check_strangers(0);
}

/* A box that stands still for longer than link_timeout is found again; one that stays so is given up. */
static void test_a_stalled_box_is_waited_for_then_given_up(void **state)
{
	(void)state;
	static const char keys[] = "device: cpu:1\nsave_strategy: steps\nsave_steps: 40\nlink_timeout: 0.4\nlink_give_up: 1.5\n";
	struct rig rig;
	rig_open(&rig, 2, keys, 0, 0);
	run_alone(&rig, keys, " --max_steps 400");
	for (int stalled = 0; stalled < 2; stalled++) {
		start_all(&rig, " --max_steps 400");
		wait_for_checkpoints(&rig, 40);
		kill(rig.ran[stalled].pid, SIGSTOP);
		usleep(900000);
		kill(rig.ran[stalled].pid, SIGCONT);
		finish_all(&rig);
		check_weights(&rig.scratch, "model.safetensors", 2);
		for (int k = 0; k < 2; k++)
			check_ok(rh_dir_remove(path_of("%s/out%d", rig.scratch.dir, k + 1)));
		start_all(&rig, " --max_steps 400");
		wait_for_checkpoints(&rig, 40);
		kill(rig.ran[stalled].pid, SIGSTOP);
		run_wait(&rig.ran[!stalled]);
		check_failed(&rig.ran[!stalled], "no connection for 1.5 s (link_give_up); stopped after step ");
		check_failed(&rig.ran[!stalled], ", whose checkpoint is written");
		kill(rig.ran[stalled].pid, SIGKILL);
		run_wait(&rig.ran[stalled]);
		for (int k = 0; k < 2; k++) {
			run_free(&rig.ran[k]);
			check_ok(rh_dir_remove(path_of("%s/out%d", rig.scratch.dir, k + 1)));
		}
	}
	rig_close(&rig);
}

/* A signal while the neighbour is gone: no hour of waiting. With a checkpoint where giving up writes one, else the newest is named. */
static void test_a_box_that_is_alone_stops_when_asked(void **state)
{
	(void)state;
	static const char *const ways[] = {"", "max_grad_norm: 0\n"};
	int named = 0;
	for (int way = 0; way < 2; way++)
		for (int gone = 0; gone < 2; gone++) {
			char keys[256];
			struct rig rig;
			snprintf(keys, sizeof keys, "device: cpu:1\nsave_strategy: steps\nsave_steps: 40\nlink_give_up: 3600\n%s",
			         ways[way]);
			rig_open(&rig, 2, keys, 0, 0);
			start_all(&rig, " --max_steps 100000");
			wait_for_checkpoints(&rig, 40);
			usleep(150000);
			kill(rig.ran[gone].pid, SIGKILL);
			run_wait(&rig.ran[gone]);
			usleep(300000);
			kill(rig.ran[!gone].pid, SIGTERM);
			int64_t began = time(NULL);
			run_wait(&rig.ran[!gone]);
			assert_true(time(NULL) - began < 25); /* a scheduler's 30 seconds */
			const struct ran *ran = &rig.ran[!gone];
			if ((!way && ran->status) || !strstr(ran->err, ": asked to stop while the box there was gone") ||
			    (!ran->status && !strstr(ran->err, "stopped by a signal after step ")))
				fail_msg("exit %d: %s", ran->status, ran->err);
			if (ran->status) /* else the newest checkpoint happened to be that of the last step */
				check_failed(ran, "asked to stop|; stopped after step |, and the newest checkpoint is that of step ");
			named += ran->status != 0;
			for (int k = 0; k < 2; k++)
				run_free(&rig.ran[k]);
			start_all(&rig, " --max_steps 45 --resume_from_checkpoint true");
			for (int k = 0; k < 2; k++) { /* they go on, or stand beyond that */
				run_wait(&rig.ran[k]);
				if (rig.ran[k].status)
					fail_msg("%s", rig.ran[k].err);
				run_free(&rig.ran[k]);
			}
			rig_close(&rig);
		}
	assert_true(named > 0);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_line_cut_at_random_moments_changes_no_bit),
	        cmocka_unit_test(test_boxes_killed_at_random_moments_change_no_bit),
	        cmocka_unit_test(test_a_box_started_again_before_all_are_there_is_met_anew),
	        cmocka_unit_test(test_a_box_that_dies_before_all_are_there_is_waited_for),
	        cmocka_unit_test(test_boxes_that_have_ended_are_started_again),
	        cmocka_unit_test(test_strangers_are_refused_logged_and_change_no_bit),
	        cmocka_unit_test(test_a_stalled_box_is_waited_for_then_given_up),
	        cmocka_unit_test(test_a_box_that_is_alone_stops_when_asked),
	        cmocka_unit_test(test_a_line_that_stays_broken_ends_the_run_on_checkpoints),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
