import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const DOCS = join(__dirname, '../../../docs');

/** The table in docs/guarantees.md says the truth: each row once, each with tests of its name in the files that it links. */
describe('the table of faults', () => {
  const text = readFileSync(join(DOCS, 'guarantees.md'), 'utf8');
  const rows = [...text.matchAll(/^\| ([FM]\d+) \| (.+) \| (.*) \|$/gm)].map(([, name = '', , tests = '']) => ({
    name,
    files: [...tests.matchAll(/\]\((.+?)\)/g)].map(([, file]) => String(file)),
  }));

  it('has all rows, each once', () => {
    const names = (letter: string, count: number) => Array.from({ length: count }, (_, i) => `${letter}${i + 1}`);
    expect(rows.map(({ name }) => name)).toEqual([...names('F', 70), ...names('M', 14)]);
  });

  it.each(rows)('$name is tested where it says', ({ name, files }) => {
    expect(files.length).toBeGreaterThan(0);
    for (const file of files) {
      expect(readFileSync(join(DOCS, file), 'utf8')).toMatch(new RegExp(`['"\x60]([FM]\\d+, )*${name}(, [FM]\\d+)*: `));
    }
  });
});
