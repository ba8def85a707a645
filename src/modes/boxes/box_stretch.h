/* Steps of mode paci, which nothing flushes, in training: what is in their messages (box_letters.h), and when box 1 ends a stretch.
 *
 * A step's data come with the size of the data that follow as many steps later; 0 says that there are none, so that the stretch ends with
 * the step before. All boxes ask for a rest in the message of squares, and results bring box 1 what was asked for. */
#ifndef RH_MODES_BOXES_BOX_STRETCH_H
#define RH_MODES_BOXES_BOX_STRETCH_H

#include "session/mode.h"

struct box_stretch;

int box_stretch_reserve(struct rh_mode_run *run, struct box_stretch **out) RH_MUST;
void box_stretch_free(struct box_stretch *stretch);

/* The slots of struct rh_mode_steps. */
int box_stretch_begin(struct rh_mode_run *run, int64_t until, int64_t *count, const struct rh_letters **letters) RH_MUST;
int64_t box_stretch_data(struct rh_mode_run *run, int64_t step) RH_MUST;
void box_stretch_ended(struct rh_mode_run *run, int64_t step);
int box_stretch_rest(struct rh_mode_run *run, int64_t first, int64_t steps) RH_MUST;

#endif
