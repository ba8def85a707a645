/* What an update waits for: that devices have uploaded what they are to read, and that a checkpoint has read the block. */
#include "check.h"

#include "core/pool.h"
#include "offload/optimizer.h"
#include "offload/updater.h"

#include <string.h>
#include <time.h>

enum { COUNT = 100, BLOCKS = 2 };

static struct rh_tensor tensors[] = {{.name = "a.weight", .rank = 1, .rows = 1, .cols = COUNT}};

struct world {
	struct rh_block specs[BLOCKS];
	struct rh_pool *pool;
	struct rh_store *store;
	struct rh_updater *updater;
	struct rh_update update;
};

static void world_open(struct world *world, int published)
{
	float ones[COUNT];
	*world = (struct world){.update = {{0.9, 0.999, 1e-8, 0, 0}, 1e-2, 1, 1}};
	for (int i = 0; i < COUNT; i++)
		ones[i] = 1;
	for (int b = 0; b < BLOCKS; b++)
		world->specs[b] = (struct rh_block){
		        .name = b ? "b" : "a", .tensor = tensors, .tensors = 1, .elements = COUNT, .trainable = 1, .uses = 1};
	check_ok(rh_pool_create(1, &world->pool));
	check_ok(rh_store_create(world->specs, BLOCKS,
	                         &(struct rh_store_options){.dtype = RH_F32, .layout = RH_LAYOUT_PLAIN, .published = published},
	                         world->pool, &world->store));
	for (int b = 0; b < BLOCKS; b++) {
		check_ok(rh_store_set(world->store, b, 0, 0, COUNT, ones));
		rh_store_publish(world->store, b);
		memcpy(rh_store_gradient(world->store, b), ones, sizeof ones);
	}
	check_ok(rh_updater_create(world->store, NULL, &world->updater));
}

static void world_close(struct world *world)
{
	rh_updater_destroy(world->updater);
	rh_store_destroy(world->store);
	rh_pool_destroy(world->pool);
}

/* An event that is reached when the test says so. */
struct later {
	struct rh_event event;
	_Atomic int reached;
};

static int later_query(struct rh_event *event)
{
	return ((struct later *)event)->reached;
}

static void pass_a_moment(void)
{
	nanosleep(&(struct timespec){0, 20000000}, NULL); /* who need not wait is through by then, most often */
}

/* Ends early, so that whoever waits looks for other things to do, too. */
static int later_sync(struct rh_event *event)
{
	(void)event;
	nanosleep(&(struct timespec){0, 1000000}, NULL);
	return 0;
}

static const struct rh_device_ops ops = {.event_query = later_query, .event_sync = later_sync};

/* A gradient that is there before the uploads of its step are over makes no weights that they could read, nor any that are published. */
static void test_a_stale_update_waits_until_its_step_has_uploaded(void **state)
{
	(void)state;
	struct world world;
	struct later later = {.event = {&ops}};
	struct rh_event *uploads[] = {&later.event};
	double norm;
	float values[COUNT];
	world_open(&world, 1);
	rh_updater_open(world.updater, &world.update, 0);
	for (int b = 0; b < BLOCKS; b++) {
		rh_updater_uploaded(world.updater, b, uploads, 1);
		rh_updater_arrives(world.updater, b, NULL);
	}
	check_ok(rh_updater_norm(world.updater, &norm));
	pass_a_moment();
	for (int b = 0; b < BLOCKS; b++) {
		check_ok(rh_store_get(world.store, b, 0, 0, COUNT, values));
		assert_true(values[3] == 1);
		assert_false(rh_updater_has_weights(world.updater, b));
	}
	later.reached = 1;
	check_ok(rh_updater_finish(world.updater));
	for (int b = 0; b < BLOCKS; b++) {
		assert_true(rh_store_is_behind(world.store, b));
		check_ok(rh_store_get(world.store, b, 0, 0, COUNT, values));
		assert_true(values[3] < 1 && ((const float *)rh_store_weights(world.store, b))[3] == 1);
	}
	world_close(&world);
}

static struct world *told_of;

/* While the block is published for the first time its gradient arrives, and the uploads of the step after are over. */
static void meanwhile(const struct rh_updater_moment *moment)
{
	if (moment->told != RH_TOLD_PUBLISHED || !told_of)
		return;
	rh_updater_arrives(told_of->updater, 0, NULL);
	rh_updater_uploaded(told_of->updater, 0, NULL, 0);
	__atomic_store_n(&told_of, NULL, __ATOMIC_RELEASE);
}

/* Nobody waits for what is published before the first update: the next publication may be asked for before it is over. */
static void test_what_is_asked_for_during_a_publication_is_published(void **state)
{
	(void)state;
	struct world world;
	world_open(&world, 1);
	rh_updater_open(world.updater, &world.update, 0);
	rh_updater_tell(world.updater, meanwhile);
	told_of = &world;
	rh_updater_uploaded(world.updater, 0, NULL, 0);
	while (__atomic_load_n(&told_of, __ATOMIC_ACQUIRE))
		pass_a_moment();
	check_ok(rh_updater_await_gradient(world.updater, 0));
	check_ok(rh_updater_await_weights(world.updater, 0));
	assert_false(rh_store_is_behind(world.store, 0));
	assert_true(((const float *)rh_store_weights(world.store, 0))[3] < 1);
	rh_updater_tell(world.updater, NULL);
	world_close(&world);
}

static void test_a_held_block_is_updated_when_it_is_released(void **state)
{
	(void)state;
	static const double clips[] = {0, 1};
	for (int c = 0; c < 2; c++) {
		struct world world;
		double norm;
		float values[COUNT];
		world_open(&world, 0);
		rh_updater_hold(world.updater);
		assert_false(rh_updater_awaits_release(world.updater)); /* no gradient is there */
		rh_updater_open(world.updater, &world.update, clips[c]);
		rh_updater_arrives(world.updater, 1, NULL);
		while (rh_updater_is_taking(world.updater))
			pass_a_moment();
		assert_int_equal(rh_updater_awaits_release(world.updater), !c); /* with clipping the norm is missing, too */
		rh_updater_arrives(world.updater, 0, NULL);
		check_ok(rh_updater_norm(world.updater, &norm));
		assert_true(rh_updater_awaits_release(world.updater));
		rh_updater_release(world.updater, 0);
		check_ok(rh_updater_await_weights(world.updater, 0));
		check_ok(rh_store_get(world.store, 1, 0, 0, COUNT, values));
		assert_true(values[3] == 1 && rh_updater_awaits_release(world.updater));
		pass_a_moment();
		rh_updater_release(world.updater, 1);
		check_ok(rh_updater_finish(world.updater));
		check_ok(rh_store_get(world.store, 1, 0, 0, COUNT, values));
		assert_true(values[3] < 1);
		assert_false(rh_updater_awaits_release(world.updater));
		assert_true(rh_updater_held_seconds(world.updater) >= 0.01);
		world_close(&world);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_stale_update_waits_until_its_step_has_uploaded),
	        cmocka_unit_test(test_what_is_asked_for_during_a_publication_is_published),
	        cmocka_unit_test(test_a_held_block_is_updated_when_it_is_released),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
