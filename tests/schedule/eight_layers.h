/* Plans of eight layers whose boundaries are counted. */
#ifndef RH_TESTS_RUN_EIGHT_LAYERS_H
#define RH_TESTS_RUN_EIGHT_LAYERS_H

#include "partition/stage_plan.h"

/* Layers 0 to 7: forward stages up to 5, then fused [5, 8), [3, 5), [0, 3). */
static struct rh_stage forward[] = {{0, 2}, {2, 5}}, backward[] = {{5, 8}, {3, 5}, {0, 3}};
static const struct rh_stage_plan plan = {.forward = forward, .backward = backward, .forward_stages = 2, .backward_stages = 3};
enum { LAYERS = 8, PLANS = 4 };

/* More stages, frozen layers below, and all in one stage. */
static struct rh_stage deeper_up[] = {{0, 1}, {1, 2}, {2, 4}, {4, 7}}, deeper_down[] = {{7, 8}, {6, 7}, {4, 6}, {3, 4}, {1, 3}, {0, 1}};
static const struct rh_stage_plan deeper = {.forward = deeper_up, .backward = deeper_down, .forward_stages = 4, .backward_stages = 6};
static const struct rh_stage_plan lower_frozen = {.forward = deeper_up, .backward = deeper_down, .forward_stages = 4, .backward_stages = 3};
static struct rh_stage all[] = {{0, 8}};
static const struct rh_stage_plan in_one = {.backward = all, .backward_stages = 1};
static const struct rh_stage_plan *const all_plans[PLANS] = {&plan, &deeper, &lower_frozen, &in_one};

#endif
