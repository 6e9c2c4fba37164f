// The page: all data and code inside, drawn on canvases by the script at its end.
#include "eval/html.h"
#include "eval/reading_map.h"

#include <nlohmann/json.hpp>

namespace fovea {
namespace {

const char* const kHead = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fovea: what each token read</title>
<style>
:root { --ink:#e8e6e1; --dim:#8d8b86; --paper:#14151a; --panel:#1c1e25; --line:#2b2e38; --read:#4fd1c5; --fact:#ffb547; --bad:#ff6b6b; }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink); font:15px/1.5 system-ui, "DejaVu Sans", sans-serif }
main { max-width:1120px; margin:0 auto; padding:40px 24px 80px }
h1 { font-size:30px; font-weight:600; letter-spacing:-.02em; margin:0 0 6px }
.lead { color:var(--dim); max-width:760px; margin:0 0 32px }
.lead b { color:var(--ink); font-weight:500 }
section { background:var(--panel); border:1px solid var(--line); border-radius:14px; padding:22px 24px 18px; margin:0 0 24px }
h2 { font-size:18px; font-weight:600; margin:0 0 4px }
.fact { color:var(--fact); margin:0 0 14px; font-size:14px }
.tokens { margin:4px 0 16px; font:14px/2.1 ui-monospace, "DejaVu Sans Mono", monospace }
.tokens button { all:unset; cursor:pointer; padding:2px 3px; margin:0 1px; border-radius:5px; background:#262934; white-space:pre }
.tokens button:hover { background:#343846 }
.tokens button.on { background:var(--read); color:#0c1413 }
.tokens .all { background:none; color:var(--dim); margin-right:10px; text-decoration:underline; text-underline-offset:3px }
.tokens .all.on { background:none; color:var(--read) }
.plot { display:grid; grid-template-columns:74px 1fr; gap:0 10px; align-items:center }
.plot label { color:var(--dim); font-size:12px; text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap }
canvas { width:100%; display:block; border-radius:3px; image-rendering:pixelated }
.layer { margin-bottom:5px }
.axis { color:var(--dim); font-size:12px; display:flex; justify-content:space-between; padding-top:4px }
.figures { display:flex; flex-wrap:wrap; gap:8px 30px; color:var(--dim); font-size:13px; margin-top:14px }
.figures b { color:var(--ink); font-weight:500; font-variant-numeric:tabular-nums }
.wrong { color:var(--bad) }
#tip { position:fixed; pointer-events:none; background:#000d; color:var(--ink); padding:4px 8px; border-radius:6px; font-size:12px; display:none }
</style></head><body><main>
)html";

const char* const kScript = R"html(
<div id="tip"></div>
<script>
const maps = JSON.parse(document.getElementById('data').textContent);
const tip = document.getElementById('tip');
const el = (tag, cls, text) => { const e = document.createElement(tag); if (cls) e.className = cls; if (text !== undefined) e.textContent = text; return e; };
const mb = b => b < 1e6 ? (b / 1e3).toFixed(0) + ' kB' : (b / 1e6).toFixed(1) + ' MB';
const kShades = [[28,30,37],[25,68,68],[38,122,116],[79,209,197],[190,247,240]];
function shade(x) {
  if (x <= 0) return [35,38,47];
  const at = Math.min(1, .25 + .75 * x) * (kShades.length - 1), i = Math.min(kShades.length - 2, Math.floor(at)), f = at - i;
  return kShades[i].map((c, k) => Math.round(c + (kShades[i + 1][k] - c) * f));
}
// Reads of each block by one layer and head, over one row or all: share of the rows that read it.
function reads(map, layer, head, row) {
  const counts = new Float32Array(map.blocks);
  const rows = row < 0 ? map.rows : [map.rows[row]];
  for (const r of rows) {
    for (const b of r.blocks[layer][head]) counts[b] += 1 / rows.length;
  }
  return counts;
}
function draw(map, canvas, layer, head, row) {
  const width = canvas.width, height = canvas.height, g = canvas.getContext('2d'), image = g.createImageData(width, height);
  const counts = reads(map, layer, head, row);
  for (let x = 0; x < width; ++x) {
    const from = Math.floor(x * map.blocks / width), to = Math.max(from + 1, Math.floor((x + 1) * map.blocks / width));
    let most = 0;
    for (let b = from; b < to; ++b) most = Math.max(most, counts[b]);
    const inFact = map.fact_first >= 0 && to > map.fact_first && from <= map.fact_last;
    let c = shade(most);
    if (inFact) c = most > 0 ? [255, 200, 110] : [120, 84, 32];
    for (let y = 0; y < height; ++y) { const i = 4 * (y * width + x); image.data[i] = c[0]; image.data[i+1] = c[1]; image.data[i+2] = c[2]; image.data[i+3] = 255; }
  }
  g.putImageData(image, 0, 0);
}
for (const map of maps) {
  const s = el('section');
  const h = el('h2', '', map.question);
  s.append(h, el('p', 'fact', map.fact ? 'planted: ' + map.fact : 'no such fact is in the document'));
  const tokens = el('div', 'tokens'), all = el('button', 'all on', 'all tokens');
  tokens.append(all);
  const chips = map.rows.map((r, i) => { const b = el('button', '', r.token.replace(/\n/g, '⏎')); tokens.append(b); b.title = 'position ' + r.position; b.onclick = () => show(i); return b; });
  all.onclick = () => show(-1);
  s.append(tokens);
  const plot = el('div', 'plot'), strips = [];
  for (let layer = 0; layer < map.layers; ++layer) for (let head = 0; head < map.heads; ++head) {
    plot.append(el('label', '', 'layer ' + layer + ' · kv ' + head));
    const c = el('canvas', head + 1 == map.heads ? 'layer' : '');
    c.width = 980; c.height = 12; c.style.height = '12px';
    c.onmousemove = e => {
      const b = Math.min(map.blocks - 1, Math.floor(e.offsetX / c.clientWidth * map.blocks)), n = map.rows.filter(r => r.blocks[layer][head].includes(b)).length;
      tip.style.display = 'block'; tip.style.left = e.clientX + 14 + 'px'; tip.style.top = e.clientY + 12 + 'px';
      tip.textContent = `block ${b} (tokens ${b * map.block_size} to ${(b + 1) * map.block_size - 1}): read by ${n} of ${map.rows.length} answer tokens` + (b >= map.fact_first && b <= map.fact_last && map.fact_first >= 0 ? ' — the planted fact' : '');
    };
    c.onmouseleave = () => tip.style.display = 'none';
    plot.append(c); strips.push([c, layer, head]);
  }
  const axis = el('div', 'axis');
  for (const f of [0, .25, .5, .75, 1]) axis.append(el('span', '', Math.round(f * map.tokens).toLocaleString('en')));
  plot.append(el('label', '', 'token'), axis);
  s.append(plot);
  const figures = el('div', 'figures');
  const figure = (label, value, cls) => { const d = el('div', cls || '', label + ' '); d.append(el('b', '', value)); figures.append(d); };
  figure('answer', map.answer + (map.right ? ' ✓' : ''), map.right ? '' : 'wrong');
  if (!map.right) figure('wanted', map.wanted);
  figure('method', map.method);
  figure('read', mb(map.bytes_read) + ' of ' + mb(map.bytes_dense) + ' (' + (100 * map.bytes_read / map.bytes_dense).toFixed(1) + ' %)');
  const hits = map.fact_first < 0 ? null : map.rows.filter(r => r.blocks.some(l => l.some(h => h.some(b => b >= map.fact_first && b <= map.fact_last)))).length;
  if (hits !== null) figure('tokens that read the fact', hits + ' of ' + map.rows.length);
  s.append(figures);
  document.querySelector('main').append(s);
  function show(row) { all.classList.toggle('on', row < 0); chips.forEach((b, i) => b.classList.toggle('on', i === row)); for (const [c, l, hd] of strips) draw(map, c, l, hd, row); }
  show(-1);
}
</script></main></body></html>
)html";

nlohmann::json rows_json(const ReadingMap& m) {
  auto rows = nlohmann::json::array();
  for (const ReadingMap::Row& r : m.rows) {
    rows.push_back({{"position", r.position}, {"token", r.token}, {"blocks", r.blocks}});
  }
  return rows;
}

}  // namespace

std::string reading_map_html(const std::vector<ReadingMap>& maps) {
  auto data = nlohmann::json::array();
  for (const ReadingMap& m : maps) {
    data.push_back({{"question", m.question},
                    {"answer", m.answer},
                    {"wanted", m.wanted},
                    {"right", m.right},
                    {"method", m.method},
                    {"fact", m.fact},
                    {"fact_first", m.fact_first_block},
                    {"fact_last", m.fact_last_block},
                    {"layers", m.layers},
                    {"heads", m.kv_heads},
                    {"block_size", m.block_size},
                    {"blocks", m.context_blocks},
                    {"tokens", m.context_tokens},
                    {"bytes_read", m.stats.kv_bytes_read + m.stats.summary_bytes_read},
                    {"bytes_dense", m.stats.kv_bytes_dense},
                    {"rows", rows_json(m)}});
  }
  const ReadingMap first = maps.empty() ? ReadingMap() : maps[0];
  std::string html = kHead;
  html += "<h1>What each token read</h1>\n<p class=\"lead\">A document of <b>" + std::to_string(first.context_tokens) +
          " tokens</b> in " + std::to_string(first.context_blocks) + " blocks of " + std::to_string(first.block_size) +
          ". Each strip is one layer and KV head, the document from left to right; a block is lit when a token of the answer "
          "read it, <b style=\"color:var(--fact)\">amber</b> where the planted fact lies. Everything dark was never loaded. "
          "Choose a token to see its own reads.</p>\n";
  html += html_data(data, "data");
  html += kScript;
  return html;
}

}  // namespace fovea
