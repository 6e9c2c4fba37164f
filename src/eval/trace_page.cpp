#include "eval/trace_page.h"

#include "eval/html.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

const char* const kStyle = R"html(:root { --fact:#c85000 }
main { max-width:1128px }
h2 { font-size:18px; font-weight:600; margin:36px 0 4px; padding-top:18px; border-top:1px solid var(--line) }
h3 { font-size:15px; font-weight:600; margin:22px 0 2px }
p { margin:0 0 10px; max-width:860px }
.lead, .dim { color:var(--dim) }
.pair { display:flex; flex-wrap:wrap; gap:12px 48px }
table { border-collapse:separate; border-spacing:2px; font-size:12px; font-variant-numeric:tabular-nums }
td, th { padding:3px 8px; text-align:center; min-width:44px; font-weight:400 }
th { color:var(--dim) }
caption { white-space:nowrap; text-align:left; font-weight:600; font-size:13px; padding:6px 2px }
.map { display:grid; grid-template-columns:96px 1fr; gap:2px 10px; margin:4px 0 14px; align-items:start }
.map .name { color:var(--dim); font-size:12px; grid-column:2 }
.tokens { font:11px/13px ui-monospace, "DejaVu Sans Mono", monospace; text-align:right; overflow:hidden }
.tokens div { height:13px; white-space:pre; overflow:hidden }
canvas { display:block; width:100%; image-rendering:pixelated; background:#f6f7f9 }
.axis { grid-column:2; display:flex; justify-content:space-between; color:var(--dim); font-size:12px }
.wrong { color:#b00020 }
.fact { color:var(--fact) }
.layers { display:flex; flex-wrap:wrap; gap:18px }
.layers figure { margin:0; width:252px }
.layers canvas { width:252px; height:252px; border:1px solid var(--line) }
.layers figcaption { font-size:12px; color:var(--dim) }
)html";

const char* const kScript = R"html(const main = document.querySelector('main');
const bytes = s => Uint8Array.from(atob(s), c => c.charCodeAt(0));
const f3 = x => x.toFixed(3), pct = x => (100 * x).toFixed(1) + ' %', n0 = x => x.toLocaleString('en');
const kShades = [[246,247,249],[190,216,235],[96,160,206],[0,104,166],[6,40,74]];
function shade(x) {
  const at = Math.max(0, Math.min(1, x)) * (kShades.length - 1), i = Math.min(kShades.length - 2, Math.floor(at)), f = at - i;
  return kShades[i].map((c, k) => Math.round(c + (kShades[i + 1][k] - c) * f));
}
function point(target, text) {
  target.onmousemove = e => {
    tip.textContent = text(e);
    place_tip(e);
    if (!tip.textContent) tip.style.display = 'none';
  };
  target.onmouseleave = () => tip.style.display = 'none';
}
// Cells of layers (down) and heads (across).
function heads(title, values, layers, count, what) {
  const t = el('table'), top = el('tr');
  t.append(el('caption', '', title));
  top.append(el('th'), ...Array.from({ length: count }, (_, h) => el('th', '', what + ' ' + h)));
  t.append(top);
  for (let l = 0; l < layers; ++l) {
    const row = el('tr');
    row.append(el('th', '', 'layer ' + l));
    for (let h = 0; h < count; ++h) {
      const v = values[l * count + h], td = el('td', '', v === null ? '–' : f3(v));
      if (v !== null) { td.style.background = 'rgb(' + shade(v) + ')'; td.style.color = v > .55 ? '#fff' : 'inherit'; }
      row.append(td);
    }
    t.append(row);
  }
  return t;
}
// A strip for each row of bytes, the context from left to right; a pixel that stands for several blocks shows the most of them.
function strips(q, name, labels, rows, value, text) {
  const map = el('div', 'map'), list = el('div', 'tokens'), c = el('canvas'), width = 960, high = 13, blocks = Math.max(...rows.map(r => r.length));
  c.width = width; c.height = high * rows.length; c.style.height = c.height + 'px';
  const g = c.getContext('2d');
  rows.forEach((r, y) => {
    for (let x = 0; x < width; ++x) {
      const from = Math.floor(x * blocks / width), to = Math.max(from + 1, Math.floor((x + 1) * blocks / width));
      let most = 0;
      for (let b = from; b < to && b < r.length; ++b) most = Math.max(most, r[b]);
      if (!most) continue;
      g.fillStyle = 'rgb(' + shade(value(most / 255)) + ')';
      g.fillRect(x, y * high, 1, high - 1);
    }
  });
  if (q.fact_first >= 0) {
    const x = q.fact_first * width / blocks, w = Math.max(2, (q.fact_last + 1 - q.fact_first) * width / blocks);
    g.strokeStyle = '#c85000'; g.lineWidth = 1.5;
    g.strokeRect(Math.max(1, x - 1.5), .75, w + 3, c.height - 1.5);
  }
  point(c, e => {
    const y = Math.min(rows.length - 1, Math.floor(e.offsetY / c.clientHeight * rows.length));
    const b = Math.floor(e.offsetX / c.clientWidth * blocks), fact = q.fact_first >= 0 && b >= q.fact_first && b <= q.fact_last;
    return b >= rows[y].length ? '' : labels[y] + ', block ' + b + ' (tokens ' + n0(b * page.block_size) + ' – ' +
      n0((b + 1) * page.block_size - 1) + '): ' + text(y, b) + (fact ? ', the planted fact' : '');
  });
  list.append(...labels.map(t => el('div', '', t)));
  const axis = el('div', 'axis');
  for (const f of [0, .25, .5, .75, 1]) axis.append(el('span', '', (f ? '' : 'token ') + n0(Math.round(f * blocks * page.block_size))));
  map.append(el('div', 'name', name), list, c, axis);
  main.append(map);
}
function question(t, q) {
  const of = field => q.tokens.map(k => bytes(k[field])), read = of('read'), mass = of('mass'), heads = q.heads.map(bytes);
  const words = q.tokens.map(k => k.text.trim() ? k.text : k.text.replace(/\n/g, '⏎').replace(/ /g, '␣'));
  const names = heads.map((_, i) => 'layer ' + Math.floor(i / t.kv_heads) + ' · kv ' + i % t.kv_heads);
  main.append(el('h3', '', q.question));
  const said = el('p', q.right ? '' : 'wrong', q.answer + (q.right ? ' ✓' : ' ✗'));
  if (!q.right) said.append(el('span', 'dim', ' wanted: ' + q.wanted));
  const about = el('p', 'dim', pct(q.share) + ' of the KV bytes read');
  if (q.fact) {
    const found = read.filter(r => r.subarray(q.fact_first, q.fact_last + 1).some(x => x)).length;
    about.append('; planted: ', el('span', 'fact', q.fact), ' read by ' + found + ' of ' + read.length + ' tokens');
  }
  main.append(said, about);
  const seen = (y, b) => 'read by ' + pct(read[y][b] / 255) + ' of layers and heads' +
    (mass[y].length ? ', attention ' + pct((mass[y][b] / 255) ** 2) : '');
  const read_shade = x => .12 + .88 * x;
  strips(q, 'blocks read by token (darker: by more layers and heads)', words, read, read_shade, seen);
  if (mass.some(m => m.length))
    strips(q, 'true attention (mean over layers and heads; square-root scale, darkest from 25 %)', words, mass, x => 2 * x, seen);
  strips(q, 'blocks read by layer and KV head (darker: by more tokens)', names, heads, read_shade,
    (y, b) => 'read by ' + Math.round(heads[y][b] * read.length / 255) + ' of ' + read.length + ' tokens');
}
function prefill(p) {
  main.append(el('h3', '', 'Prefill: which blocks of keys each block of queries read'));
  main.append(el('p', 'dim', 'Queries from top to bottom, keys from left to right, blocks of ' + p.tokens_per_unit +
    ' tokens; darker: by more heads. Queries of short contexts read everything.'));
  const list = el('div', 'layers');
  p.layers.forEach((l, i) => {
    const f = el('figure'), c = el('canvas'), data = bytes(l.chosen), mean = l.density.reduce((a, b) => a + b, 0) / l.density.length;
    c.width = c.height = p.units;
    const g = c.getContext('2d'), image = g.createImageData(p.units, p.units);
    for (let k = 0; k < data.length; ++k) {
      const color = k % p.units > Math.floor(k / p.units) ? [255, 255, 255] : shade(data[k] / 255);
      image.data.set([...color, 255], 4 * k);
    }
    g.putImageData(image, 0, 0);
    point(c, e => {
      const unit = share => Math.min(p.units - 1, Math.floor(share * p.units));
      const x = unit(e.offsetX / c.clientWidth), y = unit(e.offsetY / c.clientHeight);
      const from = at => n0(at * p.tokens_per_unit) + ' – ' + n0((at + 1) * p.tokens_per_unit - 1);
      return x > y ? '' : 'queries ' + from(y) + ', keys ' + from(x) + ': read by ' + pct(data[y * p.units + x] / 255) + ' of heads';
    });
    f.append(c, el('figcaption', '', 'layer ' + i + ': density ' + pct(mean)));
    list.append(f);
  });
  const density = p.layers.flatMap(l => l.density);
  main.append(list, heads('density by layer and head', density, p.layers.length, p.layers[0].density.length, 'head'));
}
for (const t of page.traces) {
  main.append(el('h2', '', n0(t.length) + ' tokens'));
  if (t.mass.some(v => v !== null)) {
    const pair = el('div', 'pair');
    pair.append(heads('attention mass on the blocks read', t.mass, t.layers, t.kv_heads, 'kv'),
      heads('recall of the true top blocks', t.recall, t.layers, t.kv_heads, 'kv'));
    main.append(pair);
  }
  for (const q of t.answers) if (q.tokens.length) question(t, q);
  if (t.prefill) prefill(t.prefill);
}
)html";

// Shares as bytes; square roots keep small masses apart.
std::string packed(const std::vector<float>& shares, bool root, float all = 1) {
  std::vector<uint8_t> bytes;
  bytes.reserve(shares.size());
  for (float s : shares) {
    const float share = std::clamp(s / all, 0.0f, 1.0f);
    bytes.push_back(static_cast<uint8_t>(std::lround(255 * (root ? std::sqrt(share) : share))));
  }
  return base64(bytes);
}

Json answer_json(const AnswerTrace& a) {
  Json tokens = Json::array();
  for (const AnswerTrace::Token& t : a.tokens)
    tokens.push_back({{"text", t.text}, {"read", packed(t.read, false)}, {"mass", packed(t.mass, true)}});
  Json heads = Json::array();
  for (const std::vector<float>& reads : a.heads_read) heads.push_back(packed(reads, false, static_cast<float>(a.tokens.size())));
  return {{"task", a.task},
          {"question", a.question},
          {"answer", a.answer},
          {"wanted", a.wanted},
          {"right", a.right},
          {"share", a.stats.kv_bytes_share()},
          {"fact", a.fact},
          {"fact_first", a.fact_first_block},
          {"fact_last", a.fact_last_block},
          {"tokens", tokens},
          {"heads", heads}};
}

Json trace_json(const RunTrace& t) {
  Json out = {{"length", t.length},      {"layers", t.layers},       {"kv_heads", t.kv_heads}, {"mass", Json::array()},
              {"recall", Json::array()}, {"answers", Json::array()}, {"prefill", nullptr}};
  for (const HeadTrace& h : t.heads) {
    const double rows = static_cast<double>(h.rows);
    out["mass"].push_back(h.rows ? Json(h.mass / rows) : Json());
    out["recall"].push_back(h.rows ? Json(h.recall / rows) : Json());
  }
  for (const AnswerTrace& a : t.answers) out["answers"].push_back(answer_json(a));
  if (t.prefill.units == 0) return out;
  Json layers = Json::array();
  for (const PrefillTrace::Layer& l : t.prefill.layers)
    layers.push_back({{"density", l.density}, {"chosen", packed(l.chosen, false)}});
  out["prefill"] = {{"tokens_per_unit", t.prefill.tokens_per_unit}, {"units", t.prefill.units}, {"layers", layers}};
  return out;
}

}  // namespace

std::string trace_html(const std::vector<RunTrace>& traces, int32_t block_size, const std::string& about) {
  Json data = {{"block_size", block_size}, {"traces", Json::array()}};
  for (const RunTrace& t : traces) data["traces"].push_back(trace_json(t));
  std::string html = html_head("what each token read", kStyle);
  html += "<h1>" + html_escaped(traces.empty() ? "" : run_label(traces[0].run)) + "</h1>\n<p class=\"lead\">" +
          html_escaped(about) + "</p>\n" +
          "<p>What the tokens of each answer read. A strip is blank where nothing was loaded; <span class=\"fact\">framed</span>: "
          "the planted fact. "
          "<b>Mass</b>: the share of the softmax over all keys that lies on the blocks read. <b>Recall</b>: of the k blocks read, "
          "the share "
          "that are among the k of most mass; first and last blocks, which are always read, count too.</p>\n";
  return html + html_end(data, kScript);
}

}  // namespace fovea
