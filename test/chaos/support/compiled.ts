import { cpSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import ts from 'typescript';

const ROOT = join(__dirname, '../../..');

/** The engine as JavaScript in a folder of its own: processes that are started by the dozen need not compile it each. */
export function compileEngine(): { engine: string; env: NodeJS.ProcessEnv; folder: string } {
  const folder = mkdtempSync(join(tmpdir(), 'redis-lock-engine-'));
  const engine = join(folder, 'engine');
  mkdirSync(engine);
  const compilerOptions = { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2022, esModuleInterop: true };
  for (const file of readdirSync(join(ROOT, 'engine')).filter((name) => name.endsWith('.ts'))) {
    const { outputText } = ts.transpileModule(readFileSync(join(ROOT, 'engine', file), 'utf8'), { compilerOptions });
    writeFileSync(join(engine, file.replace(/\.ts$/, '.js')), outputText);
  }
  cpSync(join(ROOT, 'engine/lua'), join(engine, 'lua'), { recursive: true });
  return { engine, folder, env: { ...process.env, NODE_PATH: join(ROOT, 'node_modules') } };
}
