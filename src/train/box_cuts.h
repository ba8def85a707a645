/* Which layers each of several boxes holds, where box_cuts names none: PACI's partitioner (partition/boxes.h) decides, from each box's
 * speed and memory and from the links' keys. */
#ifndef RH_TRAIN_BOX_CUTS_H
#define RH_TRAIN_BOX_CUTS_H

#include "partition/boxes.h"
#include "train/session.h"

/* Seconds and bytes of all layers on the session's machine, as box `number` from 0, with micro-batches of rows of max_length tokens. The
 * session has the whole model. layer: (layers). *cap_bytes: what host memory leaves for them. */
int rh_box_measure(struct rh_session *session, int number, struct rh_box_layer *layer, int64_t *cap_bytes) RH_MUST;

/* The cuts that follow from all boxes' layers (boxes, model->layers) and caps (boxes), and from the configuration's links. first: as of
 * rh_box_cuts. Where nothing fits, the cuts that exceed the caps by least: planning such a box says so. */
int rh_box_cuts_choose(const struct rh_config *config, const struct rh_model *model, const struct rh_box_layer *layer,
                       const int64_t *cap_bytes, int *first) RH_MUST;

/* Of a session whose box has met its neighbours, before it is planned: box_cuts; else those of the checkpoint that the run goes on from;
 * else the boxes tell box 1 what they are, and it chooses. From then on the model is this box's part, and the session's configuration
 * names the cuts. checkpoint: of a step that all boxes agree on; NULL: all begin anew. -EINVAL: the boxes' checkpoints have other cuts. */
int rh_box_take_layers(struct rh_session *session, const char *checkpoint) RH_MUST;

#endif
