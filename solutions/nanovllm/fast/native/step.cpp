// One step of the engine: all tokens of a plan through all layers, by a team of threads.
#ifdef _OPENMP
#include <omp.h>
#endif

#include "layers.h"
#include "room.h"

namespace {

class Run {
 public:
  Run(const Model& model, const Step& step, Room& room) : model(model), step(step), room(room) {
    room.fit(model, step);
  }

  void thread(int rank) {
    Walk walk(room.loops);
    walk.share(int(room.tokens.size()), [&](int t) { embed(t); });
    for (int l = 0; l < model.num_layers; ++l) layer(walk, rank, l);
    auto logits = [&](int t) { return step.logits + long(t) * model.vocab; };
    const int outputs = step.num_outputs;
    walk.share(outputs, [&](int t) {
      normalise(model, model.norm, residual(room.output_rows[t]), &room.a[t * room.lda]);
    });
    auto keep = [&](int t, int c, const float* sums) {
      std::memcpy(logits(t) + c, sums, std::min(PANEL, model.vocab - c) * sizeof(float));
    };
    linear(walk, room.a.data(), room.lda, outputs, model.head, keep);
    walk.share(outputs, [&](int t) { step.tokens[t] = likeliest(logits(t), model.vocab); });
  }

 private:
  const Model& model;
  const Step& step;
  Room& room;

  float* residual(long t) { return &room.x[t * model.hidden]; }

  void embed(int t) {
    const Stored* from = model.embedding + long(step.token_ids[t]) * model.hidden;
    float* x = residual(t);
    for (int i = 0; i < model.hidden; ++i) x[i] = widen(from[i]);
    if (!model.positions) return;
    const float* place = model.positions + long(room.tokens[t].position) * model.hidden;
    for (int i = 0; i < model.hidden; ++i) x[i] += place[i];
  }

  void layer(Walk& walk, int rank, int l) {
    const Layer& layer = model.layers[l];
    Cache cache{step.k, step.v, model.num_kv_heads, model.padded_dim, step.block_size};
    const long layer_size = long(step.num_blocks) * cache.groups * cache.size();
    cache.k += l * layer_size, cache.v += l * layer_size;
    const bool final = l == model.num_layers - 1;
    attention(walk, rank, layer, cache, final ? room.final_tiles : room.tiles);
    feed_forward(walk, layer, final);
  }

  // Leaves the heads' results in room.h.
  void attention(Walk& walk, int rank, const Layer& layer, Cache& cache,
                 const std::vector<Tile>& tiles) {
    const int tokens = int(room.tokens.size()), heads = model.num_heads / model.num_kv_heads;
    const long lda = room.lda, width = room.width;
    walk.share(tokens, [&](int t) {
      normalise(model, layer.input, residual(t), &room.a[t * lda]);
    });
    linear(walk, room.a.data(), lda, tokens, layer.qkv, [&](int t, int c, const float* sums) {
      std::memcpy(&room.qkv[t * width + c], sums, std::min<long>(PANEL, width - c) * sizeof(float));
    });
    walk.share(tokens, [&](int t) {
      const Token& token = room.tokens[t];
      place(model, layer, cache, &room.qkv[t * width], t, tokens, token.position, token.slot,
            token.last, room.q.data());
    });
    const float scale = 1.0f / std::sqrt(float(model.head_dim));
    walk.share(int(tiles.size()), [&](int i) {
      attend(tiles[i], cache, room.q.data(), tokens, heads, model.head_dim, scale, layer.window,
             room.threads[rank], room.h.data(), room.ldh);
    });
  }

  // Of the last layer, for the tokens only whose logits are wanted.
  void feed_forward(Walk& walk, const Layer& layer, bool final) {
    const int rows = final ? step.num_outputs : int(room.tokens.size());
    const long lda = room.lda, ldh = room.ldh;
    auto x = [&](int t) { return residual(final ? room.output_rows[t] : t); };
    auto add = [&](int t, int c, const float* sums) {
      const int count = std::min(PANEL, model.hidden - c);
      float* to = x(t) + c;
      for (int i = 0; i < count; ++i) to[i] += sums[i];
    };
    linear(walk, room.h.data(), ldh, rows, layer.output, add);
    walk.share(rows, [&](int t) {
      normalise(model, layer.post_attention, x(t), &room.a[t * lda]);
    });
    linear(walk, room.a.data(), lda, rows, layer.up, [&](int t, int c, const float* sums) {
      activate(model, c, sums, &room.h[t * ldh]);
    });
    linear(walk, room.h.data(), ldh, rows, layer.down, add);
  }
};

}  // namespace

extern "C" {

int32_t nv_lanes() { return LANES; }
void* nv_open() { return new Room; }
void nv_close(void* room) { delete static_cast<Room*>(room); }

void nv_step(const Model* model, const Step* step, void* room) {
  Run run(*model, *step, *static_cast<Room*>(room));
#ifdef _OPENMP
#pragma omp parallel num_threads(step->num_threads)  // or fewer, if there are no more
  run.thread(omp_get_thread_num());
#else
  run.thread(0);
#endif
}

}
