/**
 * Draws docs/figures.svg from a report of run.mjs: how long a waiter takes to enter after a release. Prints the table
 * that stands beside it in the README.
 *
 *   node bench/plot.mjs bench/results/<time>.json [target.svg]
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { shortTable } from './lib/figures.mjs';
import { median } from './lib/stats.mjs';

const [source, target = join(dirname(dirname(fileURLToPath(import.meta.url))), 'docs', 'figures.svg')] =
  process.argv.slice(2);
if (!source) throw new Error('Usage: node bench/plot.mjs <results.json> [target.svg]');

const VARIANT = { waiters: 16, processes: 4, csMs: 1 };
const TITLES = {
  'floor-handoff': 'floor',
  ours: 'Redis Lock',
  'ours-with-index': 'Redis Lock, with index',
  'n8n-chain-1s': 'INCR chain, Wait 1 s',
  'n8n-chain-5s': 'INCR chain, Wait 5 s',
  redlock5: 'redlock',
  'redlock5-10ms': 'redlock, tuned to 10 ms',
};

const WIDTH = 720;
const LEFT = 210;
const RIGHT = 70;
const TOP = 52;
const ROW = 26;

const report = JSON.parse(readFileSync(source, 'utf8'));
const heading = `Contended hand-off | ${Object.entries(VARIANT)
  .map(([name, value]) => `${name}=${value}`)
  .join(' ')}`;
const byAdapter = report.results[heading];
if (!byAdapter) throw new Error(`${source} has no "${heading}"`);

const rows = Object.entries(byAdapter)
  .map(([name, samples]) => {
    const over = (field) => median(samples.map((sample) => sample[field]).filter(Number.isFinite));
    const { traits } = report.adapters.find((adapter) => adapter.name === name);
    const kind = traits.ours ? 'ours' : traits.floor ? 'floor' : 'peer';
    return { title: TITLES[name] ?? name, kind, middle: over('hand-off median ms'), slow: over('hand-off p99 ms') };
  })
  .filter(({ middle }) => middle !== null)
  .sort((a, b) => a.middle - b.middle);

// A bar of no length says nothing, hence the half.
const least = 10 ** Math.floor(Math.log10(Math.min(...rows.map(({ middle }) => middle)) / 2));
const most = 10 ** Math.ceil(Math.log10(Math.max(...rows.map(({ slow }) => slow))));
const x = (ms) => LEFT + ((WIDTH - LEFT - RIGHT) * Math.log10(ms / least)) / Math.log10(most / least);
const number = (ms) => (ms >= 100 ? Math.round(ms).toString() : ms.toPrecision(2));
const at = (value) => Number(value.toFixed(1));
const bottom = TOP + rows.length * ROW;

const decades = [];
for (let ms = least; ms <= most * 1.0001; ms *= 10) decades.push(ms);

const grid = decades.map(
  (ms) =>
    `<line class="grid" x1="${at(x(ms))}" y1="${TOP - 4}" x2="${at(x(ms))}" y2="${bottom}"/>` +
    `<text class="small" x="${at(x(ms))}" y="${bottom + 16}" text-anchor="middle">${Number(ms.toPrecision(1))} ms</text>`,
);
const bars = rows.map(({ title, kind, middle, slow }, i) => {
  const y = TOP + i * ROW;
  const centre = y + ROW / 2 - 2;
  return [
    `<text x="${LEFT - 10}" y="${centre + 4}" text-anchor="end"${kind === 'ours' ? ' font-weight="600"' : ''}>${title}</text>`,
    `<rect class="${kind}" x="${LEFT}" y="${y + 3}" width="${at(Math.max(1, x(middle) - LEFT))}" height="${ROW - 10}" rx="2"/>`,
    `<path class="whisker" d="M${at(x(middle))} ${centre}H${at(x(slow))}m0 -4v8"/>`,
    `<text class="small" x="${at(x(slow) + 6)}" y="${centre + 4}">${number(middle)}</text>`,
  ].join('');
});

const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${bottom + 26}" width="${WIDTH}" height="${bottom + 26}" role="img" aria-labelledby="title">
<title id="title">From one holder's release to the next holder's entry: ${rows.map(({ title, middle }) => `${title} ${number(middle)} ms`).join(', ')}</title>
<style>
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
.small { font-size: 11px; fill: #59636e }
.grid { stroke: #d1d9e0 } .whisker { stroke: #59636e; fill: none }
.ours { fill: #c6302b } .floor { fill: #b9c1c9 } .peer { fill: #6c8ebf }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 }
.grid { stroke: #3d444d } .whisker { stroke: #9198a1 }
.ours { fill: #ff6b62 } .floor { fill: #59636e } .peer { fill: #5b8dd6 }
}
</style>
<text x="0" y="16" font-weight="600">From one holder's release to the next holder's entry</text>
<text class="small" x="0" y="34">${VARIANT.waiters} waiters in ${VARIANT.processes} processes. Bar: median, in ms on a log scale. Line: up to the 99th percentile.</text>
${grid.join('\n')}
${bars.join('\n')}
</svg>
`;
writeFileSync(target, svg);
console.log(`${shortTable(report)}\n\nWritten to ${target}`);
