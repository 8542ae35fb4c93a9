import { Gate, type Fate, type Proxy } from './proxy';

/**
 * Runs `call` once for each command about `key` that it sends: the n-th is held back until `meanwhile` is done. So
 * something happens before the first command, between any two, and nothing after the last. Returns how many there were.
 */
export async function betweenCommands<T>(
  proxy: Proxy,
  steps: {
    before: () => Promise<{ key: string; call: () => Promise<unknown> }>;
    meanwhile: (key: string) => Promise<T>;
    after: (result: unknown, made: T, key: string) => Promise<void>;
  },
): Promise<number> {
  for (let number = 1; ; number++) {
    proxy.judge = () => 'pass';
    const { key, call } = await steps.before();
    const [held, going] = [new Gate(), new Gate()];
    let commands = 0;
    proxy.judge = (command): Fate => {
      if (!command.includes(key) || ++commands !== number) return 'pass';
      held.open();
      return { after: going.opened };
    };
    const result = call();
    const isHeld = await Promise.race([held.opened.then(() => true), result.then(() => false)]);
    if (!isHeld) return number - 1;
    const made = await steps.meanwhile(key);
    going.open();
    await steps.after(await result, made, key);
  }
}
