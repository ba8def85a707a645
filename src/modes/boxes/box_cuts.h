/* Which layers each of several boxes holds, where box_cuts names none: PACI's partitioner (partition/box_partition.h) decides, from each
 * box's speed and memory and from the links. */
#ifndef RH_MODES_BOXES_BOX_CUTS_H
#define RH_MODES_BOXES_BOX_CUTS_H

#include "partition/box_partition.h"
#include "session/session.h"

/* Seconds and bytes of all layers on the session's machine, as box `number` from 0, with micro-batches of rows of max_length tokens. The
 * session has the whole model. layer: (layers). *cap_bytes: what host memory leaves for them. */
int rh_box_measure(struct rh_session *session, int number, struct rh_box_layer *layer, int64_t *cap_bytes) RH_MUST;

/* What a box tells the one below. */
struct rh_box_told {
	int64_t cap_bytes;
	struct rh_link_line line_above; /* to its upper neighbour */
};

/* The cuts that follow from all boxes' layers (boxes, model->layers), from what they told (boxes), and from the configuration's links; or,
 * where it names none, from the lines that were told. first: as of rh_box_cuts. Where nothing fits, the cuts that exceed the caps by
 * least: planning such a box says so. */
int rh_box_cuts_choose(const struct rh_config *config, const struct rh_model *model, const struct rh_box_layer *layer,
                       const struct rh_box_told *told, int *first) RH_MUST;

/* Chooses this box's layers once its links are open and before anything is planned: by box_cuts; else by the cuts of the checkpoint that
 * the run continues; else all boxes send box 1 what they measured, and it chooses. Afterwards the model is this box's part, and the
 * session's configuration names the cuts. checkpoint: one of a step that all boxes have; NULL: all begin anew. -EINVAL: the boxes'
 * checkpoints have different cuts. */
int rh_box_take_layers(struct rh_session *session, const char *checkpoint) RH_MUST;

#endif
